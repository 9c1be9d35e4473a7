"""The servers that stand in for the real services on one machine: `tinker` and `sandbox`.

They import nothing of coderl, and coderl nothing but `interface`: what a server needs of it is given when it starts.
"""
