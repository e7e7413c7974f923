/* All kernels as one unit: polyopt/native/build.py compiles this file. */
#include "products.c"
#include "rows.c"
#include "packed_attention.c"
#include "decode.c"
#include "blocks.c"
