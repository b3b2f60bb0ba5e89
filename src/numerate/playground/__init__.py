"""The playground: a local web page on which people move distributions and see what losses, labels and decisions make of them.

``numerate playground`` starts it. The browser sends the whole state of a tab, the library computes, and the answer is JSON: the
server remembers nothing.
"""
