"""Builds the documentation as a site: pages of docs/, one for each rule, and one for each command.

Usage: make site, or python -m tools.site [FOLDER]

Rule: nothing on the site is written for the site alone. Its pages are those of the repository, the table of
rules and the command line's help.

The generator is Sphinx with MyST and the theme Furo. It has been kept well for years, fails for a link to a
missing page or heading, copies the files that pages link to, and loads nothing from elsewhere. Its search is
plain JavaScript over one file, so it works without a server, and a test can run it. Zensical builds in a
third of the time, and its search shows results as you type; but it is not yet 1.0, and the form of its index
is not documented. mdBook has no wheel, and MkDocs has had no release since 2024.
"""
