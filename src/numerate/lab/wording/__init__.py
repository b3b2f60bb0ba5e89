"""Figures, decisions and evaluations as text, the same in a report and on the command line.

text        numbers, p-values, lists of names, and text from data that is not trusted
measures    how a metric is named, summarised and formatted
decisions   what decisions change, where errors come from, and how good the distributions are
"""
