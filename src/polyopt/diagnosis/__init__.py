"""What is wrong with a run: signs that read a run's record, shared by `doctor` and live warnings.

A sign is a small pure function of an `Evidence` that returns a `Symptom` or None, registered with
`@sign(...)` beside its name, the ideas of the catalog that address it and the flag to try. One file
holds one family of signs; `diagnose` runs them all.
"""

from polyopt.diagnosis.evidence import Evidence, read_evidence
from polyopt.diagnosis.signs import Finding, Sign, Symptom, all_signs, diagnose, sign

__all__ = [
    "Evidence",
    "Finding",
    "Sign",
    "Symptom",
    "all_signs",
    "diagnose",
    "read_evidence",
    "sign",
]
