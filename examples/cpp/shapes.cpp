#include "shapes.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace gt {
namespace {

struct DTypeInfo {
  DType dtype;
  const char* wire;
  std::size_t bytes;
  char kind;
};

constexpr DTypeInfo dtypes[] = {
    {DType::boolean, "bool", 1, 'b'}, {DType::u8, "u8", 1, 'i'},   {DType::u16, "u16", 2, 'i'},   {DType::u32, "u32", 4, 'i'},
    {DType::u64, "u64", 8, 'i'},      {DType::i8, "i8", 1, 'i'},   {DType::i16, "i16", 2, 'i'},   {DType::i32, "i32", 4, 'i'},
    {DType::i64, "i64", 8, 'i'},      {DType::f16, "f16", 2, 'f'}, {DType::bf16, "bf16", 2, 'f'}, {DType::f32, "f32", 4, 'f'},
    {DType::f64, "f64", 8, 'f'},      {DType::c64, "c64", 8, 'c'}, {DType::c128, "c128", 16, 'c'},
};

const DTypeInfo& info(DType dtype) { return dtypes[static_cast<std::size_t>(dtype)]; }

// Which kinds of dtypes an element-wise op takes, and whether its result is boolean.
struct Domain {
  const char* kinds;
  bool boolean = false;
};

const std::map<std::string, Domain>& domains() {
  static const std::map<std::string, Domain> table = {
      {"neg", {"ifc"}},     {"abs", {"if"}},      {"exp", {"fc"}},      {"log", {"fc"}},     {"sqrt", {"fc"}},
      {"sin", {"fc"}},      {"cos", {"fc"}},      {"tanh", {"fc"}},     {"sigmoid", {"fc"}}, {"relu", {"if"}},
      {"erf", {"f"}},       {"add", {"bifc"}},    {"sub", {"ifc"}},     {"mul", {"bifc"}},   {"div", {"fc"}},
      {"pow", {"ifc"}},     {"maximum", {"bif"}}, {"minimum", {"bif"}}, {"eq", {"bifc", true}},
      {"lt", {"bif", true}}, {"gt", {"bif", true}}, {"where", {"bifc"}},
  };
  return table;
}

int rank_of(char kind) { return static_cast<int>(std::string_view("bifc").find(kind)); }

}  // namespace

std::string_view wire_name(DType dtype) { return info(dtype).wire; }
std::size_t item_bytes(DType dtype) { return info(dtype).bytes; }
char kind_of(DType dtype) { return info(dtype).kind; }

DType dtype_named(std::string_view name) {
  for (const DTypeInfo& each : dtypes) {
    if (each.wire == name) return each.dtype;
  }
  throw Error("DTypeError", "no dtype is called " + std::string(name));
}

std::int64_t Spec::size() const {
  constexpr std::int64_t most_elements = std::int64_t{1} << 48;
  std::int64_t size = 1;
  for (const std::int64_t each : shape) {
    if (each > most_elements || (each > 0 && size > most_elements / each)) {
      throw Error("ShapeError", "a shape has at most 2^48 elements, and this one has more");
    }
    size *= each;
  }
  return size;
}

std::size_t Spec::nbytes() const { return static_cast<std::size_t>(size()) * item_bytes(dtype); }

void refuse(const std::string& kind, const std::string& text, const Site& site) {
  throw Error(kind, text + " (" + site.file + ":" + std::to_string(site.line) + ")");
}

std::string shown(const Shape& shape) {
  std::string text = "(";
  for (std::size_t at = 0; at < shape.size(); ++at) text += (at > 0 ? ", " : "") + std::to_string(shape[at]);
  return text + ")";
}

Shape broadcast(const std::string& op, const std::vector<Shape>& shapes, const Site& site) {
  Shape out;
  for (const Shape& shape : shapes) {
    if (shape.size() > out.size()) out.insert(out.begin(), shape.size() - out.size(), 1);
    for (std::size_t at = 0; at < shape.size(); ++at) {
      std::int64_t& size = out[out.size() - shape.size() + at];
      if (shape[at] == 1 || shape[at] == size) continue;
      if (size != 1) {
        std::string listed;
        for (const Shape& each : shapes) listed += (listed.empty() ? "" : " and ") + shown(each);
        refuse("ShapeError", op + ": shapes " + listed + " do not broadcast", site);
      }
      size = shape[at];
    }
  }
  return out;
}

Spec elementwise(const std::string& op, const std::vector<Operand>& operands, const Site& site) {
  const Domain& domain = domains().at(op);
  std::vector<Shape> shapes;
  const Spec* first = nullptr;
  for (const Operand& operand : operands) {
    const auto* tensor = std::get_if<Tensor>(&operand.what);
    if (tensor == nullptr) continue;
    const Spec& spec = tensor->spec();
    if (std::string_view(domain.kinds).find(kind_of(spec.dtype)) == std::string_view::npos) {
      refuse("DTypeError", op + " does not take " + std::string(wire_name(spec.dtype)), site);
    }
    if (first != nullptr && spec.dtype != first->dtype) {
      refuse("DTypeError", op + ": operands have one dtype, not " + std::string(wire_name(first->dtype)) + " and " +
                               std::string(wire_name(spec.dtype)) + ": cast one of them", site);
    }
    if (first == nullptr) first = &spec;
    shapes.push_back(spec.shape);
  }
  if (first == nullptr) refuse("DTypeError", op + " needs at least one tensor", site);
  for (const Operand& operand : operands) {
    const auto* number = std::get_if<Scalar>(&operand.what);
    if (number != nullptr && rank_of("bif"[number->index()]) > rank_of(kind_of(first->dtype))) {
      refuse("DTypeError", op + ": a number of that kind does not fit " + std::string(wire_name(first->dtype)), site);
    }
  }
  return {domain.boolean ? DType::boolean : first->dtype, broadcast(op, shapes, site)};
}

std::int64_t axis_of(const std::string& op, std::int64_t axis, const Spec& x, const Site& site) {
  const auto dimensions = static_cast<std::int64_t>(x.shape.size());
  if (axis < -dimensions || axis >= dimensions) {
    refuse("ShapeError", op + ": axis " + std::to_string(axis) + " is out of range for shape " + shown(x.shape), site);
  }
  return axis < 0 ? axis + dimensions : axis;
}

Axes axes_of(const std::string& op, const Axes& axes, const Spec& x, const Site& site) {
  Axes found;
  for (const std::int64_t axis : axes) found.push_back(axis_of(op, axis, x, site));
  if (axes.empty()) {
    found.resize(x.shape.size());
    std::iota(found.begin(), found.end(), 0);
  }
  std::sort(found.begin(), found.end());
  if (std::adjacent_find(found.begin(), found.end()) != found.end()) refuse("ShapeError", op + ": an axis is said twice", site);
  return found;
}

Shape reduced(const std::string& op, const Axes& axes, bool keepdims, const Spec& x, const Site& site) {
  Shape shape;
  for (std::size_t at = 0; at < x.shape.size(); ++at) {
    const bool goes = std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(at));
    if (goes && x.size() == 0 && x.shape[at] == 0 && op != "sum") {
      refuse("ShapeError", op + ": no elements to choose from in shape " + shown(x.shape), site);
    }
    if (!goes) shape.push_back(x.shape[at]);
    else if (keepdims) shape.push_back(1);
  }
  return shape;
}

Shape reshaped(const Shape& wanted, const Spec& x, const Site& site) {
  Shape shape = wanted;
  std::int64_t known = 1;
  std::int64_t* open = nullptr;
  for (std::int64_t& size : shape) {
    if (size == -1 && open == nullptr) open = &size;
    else known *= size;
  }
  if (open != nullptr) *open = known > 0 && x.size() % known == 0 ? x.size() / known : 0;
  const bool sizes = std::all_of(shape.begin(), shape.end(), [](std::int64_t size) { return size >= 0; });
  if (!sizes || Spec{x.dtype, shape}.size() != x.size()) {
    refuse("ShapeError", "reshape: shape " + shown(x.shape) + " of " + std::to_string(x.size()) + " elements cannot become " +
                             shown(wanted), site);
  }
  return shape;
}

Spec product(const Spec& a, const Spec& b, const Site& site) {
  const std::string said = "matmul: " + shown(a.shape) + " @ " + shown(b.shape);
  if (a.shape.size() < 2 || b.shape.size() < 2) {
    refuse("ShapeError", said + ": both operands have at least two dimensions", site);
  }
  const std::int64_t rows = a.shape[a.shape.size() - 2], inner = a.shape.back(), columns = b.shape.back();
  if (inner != b.shape[b.shape.size() - 2]) refuse("ShapeError", said + ": inner sizes differ", site);
  if (a.dtype != b.dtype) refuse("DTypeError", said + ": operands have one dtype: cast one of them", site);
  Shape shape = broadcast("matmul", {Shape(a.shape.begin(), a.shape.end() - 2), Shape(b.shape.begin(), b.shape.end() - 2)}, site);
  shape.insert(shape.end(), {rows, columns});
  return {a.dtype, shape};
}

}  // namespace gt
