// The operations of gt.hpp: each derives the shape of its result, and adds one instruction to the segment under way.
#include <algorithm>

#include "core.hpp"
#include "shapes.hpp"

namespace gt {
namespace {

// An operand that has to be a tensor.
const Tensor& tensor_of(const std::string& op, const Operand& operand) {
  const auto* tensor = std::get_if<Tensor>(&operand.what);
  if (tensor == nullptr) refuse("DTypeError", op + " takes a tensor, not a number", operand.site);
  tensor->spec();
  return *tensor;
}

Tensor emit(const std::string& op, const std::vector<Operand>& operands, const Attributes& attributes, const Spec& result) {
  std::shared_ptr<Core> core;
  for (const Operand& operand : operands) {
    const auto* tensor = std::get_if<Tensor>(&operand.what);
    if (tensor == nullptr) continue;
    tensor->spec();
    if (core && tensor->value()->core != core) refuse("SessionError", op + ": the operands belong to two sessions", operand.site);
    core = tensor->value()->core;
  }
  if (!core) throw Error("DTypeError", op + " needs at least one tensor");
  return Tensor(core->emit(op, operands, attributes, result, operands.front().site));
}

Tensor element_by_element(const std::string& op, const std::vector<Operand>& operands) {
  return emit(op, operands, {}, elementwise(op, operands, operands.front().site));
}

Tensor reduce(const std::string& op, const Operand& x, const Axes& axes, bool keepdims) {
  const Spec& spec = tensor_of(op, x).spec();
  const Axes found = axes_of(op, axes, spec, x.site);
  return emit(op, {x}, {{"axes", found}, {"keepdims", keepdims}}, {spec.dtype, reduced(op, found, keepdims, spec, x.site)});
}

Tensor along(const std::string& op, const Operand& x, std::int64_t axis) {
  const Spec& spec = tensor_of(op, x).spec();
  if (kind_of(spec.dtype) != 'f') refuse("DTypeError", op + " takes floating-point numbers", x.site);
  return emit(op, {x}, {{"axis", axis_of(op, axis, spec, x.site)}}, spec);
}

}  // namespace

Tensor instruction(const std::string& op, const std::vector<Operand>& operands, const Attributes& attributes, const Spec& result) {
  bool readable = wire::is_utf8(op);
  for (const auto& attribute : attributes) readable = readable && wire::is_utf8(attribute.first);
  if (!readable) throw Error("ProtocolError", "the name of an operation or attribute is not UTF-8");
  return emit(op, operands, attributes, result);
}

Tensor neg(Operand x) { return element_by_element("neg", {x}); }
Tensor abs(Operand x) { return element_by_element("abs", {x}); }
Tensor exp(Operand x) { return element_by_element("exp", {x}); }
Tensor log(Operand x) { return element_by_element("log", {x}); }
Tensor sqrt(Operand x) { return element_by_element("sqrt", {x}); }
Tensor sin(Operand x) { return element_by_element("sin", {x}); }
Tensor cos(Operand x) { return element_by_element("cos", {x}); }
Tensor tanh(Operand x) { return element_by_element("tanh", {x}); }
Tensor sigmoid(Operand x) { return element_by_element("sigmoid", {x}); }
Tensor relu(Operand x) { return element_by_element("relu", {x}); }
Tensor erf(Operand x) { return element_by_element("erf", {x}); }
Tensor add(Operand a, Operand b) { return element_by_element("add", {a, b}); }
Tensor sub(Operand a, Operand b) { return element_by_element("sub", {a, b}); }
Tensor mul(Operand a, Operand b) { return element_by_element("mul", {a, b}); }
Tensor div(Operand a, Operand b) { return element_by_element("div", {a, b}); }
Tensor pow(Operand a, Operand b) { return element_by_element("pow", {a, b}); }
Tensor maximum(Operand a, Operand b) { return element_by_element("maximum", {a, b}); }
Tensor minimum(Operand a, Operand b) { return element_by_element("minimum", {a, b}); }
Tensor eq(Operand a, Operand b) { return element_by_element("eq", {a, b}); }
Tensor lt(Operand a, Operand b) { return element_by_element("lt", {a, b}); }
Tensor gt(Operand a, Operand b) { return element_by_element("gt", {a, b}); }

Tensor where(Operand condition, Operand yes, Operand no) {
  const Spec& chooses = tensor_of("where", condition).spec();
  if (chooses.dtype != DType::boolean) refuse("DTypeError", "where: the condition is boolean", condition.site);
  Spec result = elementwise("where", {yes, no}, condition.site);
  result.shape = broadcast("where", {chooses.shape, result.shape}, condition.site);
  return emit("where", {condition, yes, no}, {}, result);
}

Tensor cast(Operand x, DType dtype) { return emit("cast", {x}, {{"dtype", dtype}}, {dtype, tensor_of("cast", x).shape()}); }

Tensor sum(Operand x, const Axes& axes, bool keepdims) { return reduce("sum", x, axes, keepdims); }
Tensor max(Operand x, const Axes& axes, bool keepdims) { return reduce("max", x, axes, keepdims); }
Tensor min(Operand x, const Axes& axes, bool keepdims) { return reduce("min", x, axes, keepdims); }

Tensor mean(Operand x, const Axes& axes, bool keepdims) {
  const Spec& spec = tensor_of("mean", x).spec();
  std::int64_t count = 1;
  for (const std::int64_t axis : axes_of("mean", axes, spec, x.site)) count *= spec.shape[static_cast<std::size_t>(axis)];
  return div(Operand(sum(x, axes, keepdims), x.site), Operand(count, x.site));
}

Tensor argmax(Operand x, std::int64_t axis, bool keepdims) {
  const Spec& spec = tensor_of("argmax", x).spec();
  const std::int64_t found = axis_of("argmax", axis, spec, x.site);
  const Spec result{DType::i64, reduced("argmax", {found}, keepdims, spec, x.site)};
  return emit("argmax", {x}, {{"axis", found}, {"keepdims", keepdims}}, result);
}

Tensor softmax(Operand x, std::int64_t axis) { return along("softmax", x, axis); }
Tensor log_softmax(Operand x, std::int64_t axis) { return along("log_softmax", x, axis); }

Tensor reshape(Operand x, const Shape& shape) {
  const Spec& spec = tensor_of("reshape", x).spec();
  const Shape found = reshaped(shape, spec, x.site);
  return emit("reshape", {x}, {{"shape", found}}, {spec.dtype, found});
}

Tensor permute(Operand x, const Axes& axes) {
  const Spec& spec = tensor_of("permute", x).spec();
  if (axes.size() != spec.shape.size()) {
    refuse("ShapeError", "permute: one axis for each dimension of " + shown(spec.shape), x.site);
  }
  axes_of("permute", axes, spec, x.site);  // each once
  Axes order;
  Shape shape;
  for (const std::int64_t axis : axes) {
    order.push_back(axis_of("permute", axis, spec, x.site));
    shape.push_back(spec.shape[static_cast<std::size_t>(order.back())]);
  }
  return emit("permute", {x}, {{"axes", order}}, {spec.dtype, shape});
}

Tensor expand(Operand x, const Shape& shape) {
  const Spec& spec = tensor_of("expand", x).spec();
  if (broadcast("expand", {spec.shape, shape}, x.site) != shape) {
    refuse("ShapeError", "expand: shape " + shown(spec.shape) + " does not broadcast to " + shown(shape), x.site);
  }
  return emit("expand", {x}, {{"shape", shape}}, {spec.dtype, shape});
}

Tensor cat(const std::vector<Operand>& tensors, std::int64_t axis) {
  if (tensors.empty()) throw Error("ShapeError", "cat needs at least one tensor");
  const Site site = tensors.front().site;
  Spec result = tensor_of("cat", tensors.front()).spec();
  const std::int64_t found = axis_of("cat", axis, result, site);
  const auto at = static_cast<std::size_t>(found);
  for (std::size_t each = 1; each < tensors.size(); ++each) {
    Spec other = tensor_of("cat", tensors[each]).spec();
    if (other.shape.size() != result.shape.size() || other.dtype != result.dtype) {
      refuse("ShapeError", "cat: tensors have one dtype and as many dimensions", site);
    }
    const std::int64_t size = other.shape[at];
    other.shape[at] = result.shape[at];
    if (other.shape != result.shape) refuse("ShapeError", "cat: shapes differ outside axis " + std::to_string(found), site);
    result.shape[at] += size;
  }
  return emit("cat", tensors, {{"axis", found}}, result);
}

Tensor slice(Operand x, std::int64_t axis, std::int64_t start, std::int64_t size) {
  Spec result = tensor_of("slice", x).spec();
  const std::int64_t found = axis_of("slice", axis, result, x.site);
  std::int64_t& extent = result.shape[static_cast<std::size_t>(found)];
  if (start < 0 || size < 0 || start > extent || size > extent - start) {
    refuse("ShapeError", "slice: " + std::to_string(size) + " elements from " + std::to_string(start) +
                             " on do not fit dimension " + std::to_string(found) + " of shape " + shown(result.shape), x.site);
  }
  extent = size;
  const Attributes attributes = {{"axes", Axes{found}}, {"sizes", Axes{size}}, {"steps", Axes{1}}};
  return emit("slice", {x, Operand(start, x.site)}, attributes, result);
}

Tensor take(Operand x, Operand index, std::int64_t axis) {
  const Spec& spec = tensor_of("take", x).spec();
  const Spec& which = tensor_of("take", index).spec();
  if (kind_of(which.dtype) != 'i') refuse("DTypeError", "take: an index tensor holds integers", x.site);
  const std::int64_t found = axis_of("take", axis, spec, x.site);
  Shape shape(spec.shape.begin(), spec.shape.begin() + found);
  shape.insert(shape.end(), which.shape.begin(), which.shape.end());
  shape.insert(shape.end(), spec.shape.begin() + found + 1, spec.shape.end());
  return emit("take", {x, index}, {{"axis", found}}, {spec.dtype, shape});
}

Tensor matmul(Operand a, Operand b) {
  return emit("matmul", {a, b}, {}, product(tensor_of("matmul", a).spec(), tensor_of("matmul", b).spec(), a.site));
}

Tensor linear(Operand x, Operand weight, Operand bias) {
  const Tensor turned = permute(Operand(tensor_of("linear", weight), x.site), {1, 0});
  return add(Operand(matmul(x, Operand(turned, x.site)), x.site), bias);
}

}  // namespace gt
