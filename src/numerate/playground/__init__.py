"""The playground: a local web page that shows a model's answer as a distribution, and how losses respond to distributions.

``numerate playground`` starts it. The browser sends the state of a tab, the library computes, and the result is JSON. The server
keeps no state.
"""
