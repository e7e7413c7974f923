"""What the documentation site needs besides Sphinx, MyST and its theme."""
