"""Published systems and plug-ins as ideas: short functions, grouped by what they change.

Every module here is imported by `polyopt.ideas.load_catalog`; defining an idea registers it.
"""
