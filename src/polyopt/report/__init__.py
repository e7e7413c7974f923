"""What a person sees of a run: the live display, `report.html`, pictures."""
