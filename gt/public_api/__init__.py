"""What `import gt` offers: a row for each public function of tensors, the other names, and type stubs made from both.

Imports nothing of GT.
"""
