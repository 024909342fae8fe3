"""Operations on tensors: public functions that emit instructions, by families.

May import `tensor`. Linear algebra, which is composed of these, is above, in `linalg`.
"""
