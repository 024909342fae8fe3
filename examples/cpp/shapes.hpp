// Shapes and dtypes of results, as docs/protocol.md says: what does not fit is thrown in the program's own line.
#pragma once

#include <string>
#include <vector>

#include "gt.hpp"

namespace gt {

[[noreturn]] void refuse(const std::string& kind, const std::string& text, const Site& site);
std::string shown(const Shape& shape);

Shape broadcast(const std::string& op, const std::vector<Shape>& shapes, const Site& site);
// The result of an element-wise op: the one dtype of its tensors (or booleans, of a comparison), and their broadcast shape.
Spec elementwise(const std::string& op, const std::vector<Operand>& operands, const Site& site);
std::int64_t axis_of(const std::string& op, std::int64_t axis, const Spec& x, const Site& site);  // counted from 0
Axes axes_of(const std::string& op, const Axes& axes, const Spec& x, const Site& site);           // sorted, none: all
Shape reduced(const std::string& op, const Axes& axes, bool keepdims, const Spec& x, const Site& site);
Shape reshaped(const Shape& wanted, const Spec& x, const Site& site);  // with a −1 replaced
Spec product(const Spec& a, const Spec& b, const Site& site);          // of matmul

}  // namespace gt
