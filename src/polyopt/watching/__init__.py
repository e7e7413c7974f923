"""`polyopt watch`: the report page of a run that goes on."""
