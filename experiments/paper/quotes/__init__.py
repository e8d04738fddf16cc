"""The tables and sentences that README and docs quote, by what they are about.

A block is a function from the path to the records, for its links, to Markdown.
"""
