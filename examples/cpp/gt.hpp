// A small client of GT in C++17: sessions, tensors with shared lifetime, operations, signals and errors.
//
// Operations are gathered and sent as segments (docs/protocol.md); `fetch`, or 512 of them, send what was gathered. A session and
// its tensors belong to one thread. Whatever goes wrong is thrown as `gt::Error`.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace gt {

// An error: `kind` is one of those in docs/protocol.md, section "Errors", or ConnectionFailed or FileError; `what()` is for the user.
class Error : public std::runtime_error {
 public:
  Error(std::string kind, const std::string& text) : std::runtime_error(kind + ": " + text), kind_(std::move(kind)) {}
  const std::string& kind() const { return kind_; }

 private:
  std::string kind_;
};

enum class DType { boolean, u8, u16, u32, u64, i8, i16, i32, i64, f16, bf16, f32, f64, c64, c128 };

std::string_view wire_name(DType dtype);        // as on the wire, such as "f32"
DType dtype_named(std::string_view wire_name);  // the dtype of that name; throws DTypeError
std::size_t item_bytes(DType dtype);
char kind_of(DType dtype);  // 'b', 'i', 'f' or 'c'

// The dtype that holds values of a C++ type.
template <class T>
struct DTypeOf;
template <> struct DTypeOf<bool> { static constexpr DType value = DType::boolean; };
template <> struct DTypeOf<std::uint8_t> { static constexpr DType value = DType::u8; };
template <> struct DTypeOf<std::int32_t> { static constexpr DType value = DType::i32; };
template <> struct DTypeOf<std::int64_t> { static constexpr DType value = DType::i64; };
template <> struct DTypeOf<float> { static constexpr DType value = DType::f32; };
template <> struct DTypeOf<double> { static constexpr DType value = DType::f64; };

using Shape = std::vector<std::int64_t>;
using Bytes = std::string;

struct Spec {
  DType dtype = DType::f32;
  Shape shape;

  std::int64_t size() const;  // the number of elements
  std::size_t nbytes() const;
};

// A line of the program. As a default argument it is that of the caller.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

class Core;
struct Value;

// A handle on a tensor of a session. Copies share it; the last one that ends frees the tensor.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::shared_ptr<Value> value) : value_(std::move(value)) {}

  const Spec& spec() const;
  const Shape& shape() const { return spec().shape; }
  DType dtype() const { return spec().dtype; }

  Bytes fetch() const;  // the values in row-major order, little-endian; waits. Throws the error that the tensor holds
  template <class T>
  std::vector<T> values() const {
    static_assert(!std::is_same_v<T, bool>, "a vector of bool has no elements: fetch() has a byte for each");
    check_dtype(DTypeOf<T>::value);
    const Bytes bytes = fetch();
    std::vector<T> result(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }
  template <class T>
  T item() const {
    const std::vector<T> all = values<T>();
    if (all.size() != 1) throw Error("ShapeError", "item() is of one element, not " + std::to_string(all.size()));
    return all.front();
  }

  const std::shared_ptr<Value>& value() const { return value_; }

 private:
  void check_dtype(DType wanted) const;
  std::shared_ptr<Value> value_;
};

using Scalar = std::variant<bool, std::int64_t, double>;

// What an operation takes: a tensor, or a number, which joins a tensor without changing its dtype. Notes the caller's line.
struct Operand {
  Operand(const Tensor& tensor, Site where = Site::here()) : what(tensor), site(where) {}
  Operand(bool number, Site where = Site::here()) : what(Scalar(number)), site(where) {}
  Operand(int number, Site where = Site::here()) : what(Scalar(std::int64_t{number})), site(where) {}
  Operand(std::int64_t number, Site where = Site::here()) : what(Scalar(number)), site(where) {}
  Operand(double number, Site where = Site::here()) : what(Scalar(number)), site(where) {}

  std::variant<Tensor, Scalar> what;
  Site site;
};

using Attribute = std::variant<bool, std::int64_t, std::vector<std::int64_t>, DType>;
using Attributes = std::vector<std::pair<std::string, Attribute>>;
using Axes = std::vector<std::int64_t>;  // negative ones count from the end

struct Options {
  std::string key;              // the path of a key file, for a service with keys on TCP; empty: what GT_KEY names, if anything
  double connect_seconds = 10;  // in which the service has to answer
  double lease_seconds = 0;     // without contact, after which the session is given up; 0: as long as the service says
  std::string program = "C++";  // how monitors call it
  std::function<void(const std::string&)> notice;  // hears warnings, on a thread of the session; by default they go to stderr
};

// A session with the service at an address ("ipc:///PATH" or "tcp://HOST:PORT"). Ends it when it is destroyed.
class Session {
 public:
  explicit Session(const std::string& address, const Options& options = {});
  ~Session();
  Session(Session&&) noexcept;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  Session& operator=(Session&&) = delete;

  Tensor put(const void* values, const Spec& spec);  // copies the values
  template <class T>
  Tensor put(const std::vector<T>& values, const Shape& shape) {
    const Spec spec{DTypeOf<T>::value, shape};
    if (spec.size() != static_cast<std::int64_t>(values.size())) {
      throw Error("ShapeError", "put: " + std::to_string(values.size()) + " values do not fill the shape");
    }
    return put(values.data(), spec);
  }
  Tensor full(const Shape& shape, Scalar value, DType dtype = DType::f32, Site site = Site::here());
  Tensor parameter(const Tensor& values, Site site = Site::here());  // marked as one, so that rules of the YAML for weights hold

  void flush();  // sends what was gathered, and what is to be freed; does not wait
  void close();  // ends the session; its tensors are gone
  int workers() const;             // how many the service has
  std::size_t reconnects() const;  // how many connections were opened again so far

  const std::shared_ptr<Core>& core() const { return core_; }

 private:
  std::shared_ptr<Core> core_;
};

// While it lives, all that the session is told belongs to a signal, to which the service's YAML binds a rule. Signals nest.
class Signal {
 public:
  Signal(Session& session, const std::string& name);
  ~Signal();
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

 private:
  std::shared_ptr<Core> core_;
};

// Any instruction of docs/ops.md. The caller says what comes out of it; if that is wrong the service refuses what reads it, and so does
// `fetch` what has other bytes.
Tensor instruction(const std::string& op, const std::vector<Operand>& operands, const Attributes& attributes, const Spec& result);

// Element-wise, with shapes broadcast as NumPy does.
Tensor neg(Operand x);
Tensor abs(Operand x);
Tensor exp(Operand x);
Tensor log(Operand x);
Tensor sqrt(Operand x);
Tensor sin(Operand x);
Tensor cos(Operand x);
Tensor tanh(Operand x);
Tensor sigmoid(Operand x);
Tensor relu(Operand x);
Tensor erf(Operand x);
Tensor add(Operand a, Operand b);
Tensor sub(Operand a, Operand b);
Tensor mul(Operand a, Operand b);
Tensor div(Operand a, Operand b);
Tensor pow(Operand a, Operand b);
Tensor maximum(Operand a, Operand b);
Tensor minimum(Operand a, Operand b);
Tensor eq(Operand a, Operand b);
Tensor lt(Operand a, Operand b);
Tensor gt(Operand a, Operand b);
Tensor where(Operand condition, Operand yes, Operand no);
Tensor cast(Operand x, DType dtype);

// Over axes; none stand for all of them.
Tensor sum(Operand x, const Axes& axes = {}, bool keepdims = false);
Tensor max(Operand x, const Axes& axes = {}, bool keepdims = false);
Tensor min(Operand x, const Axes& axes = {}, bool keepdims = false);
Tensor mean(Operand x, const Axes& axes = {}, bool keepdims = false);
Tensor argmax(Operand x, std::int64_t axis, bool keepdims = false);
Tensor softmax(Operand x, std::int64_t axis);
Tensor log_softmax(Operand x, std::int64_t axis);

Tensor reshape(Operand x, const Shape& shape);  // one size may be −1
Tensor permute(Operand x, const Axes& axes);
Tensor expand(Operand x, const Shape& shape);
Tensor cat(const std::vector<Operand>& tensors, std::int64_t axis);
Tensor slice(Operand x, std::int64_t axis, std::int64_t start, std::int64_t size);
Tensor take(Operand x, Operand index, std::int64_t axis);

Tensor matmul(Operand a, Operand b);                     // [..., m, k] by [..., k, n]
Tensor linear(Operand x, Operand weight, Operand bias);  // x · weightᵀ + bias, with a weight of shape (out, in)

inline Tensor operator+(Operand a, Operand b) { return add(std::move(a), std::move(b)); }
inline Tensor operator-(Operand a, Operand b) { return sub(std::move(a), std::move(b)); }
inline Tensor operator*(Operand a, Operand b) { return mul(std::move(a), std::move(b)); }
inline Tensor operator/(Operand a, Operand b) { return div(std::move(a), std::move(b)); }
inline Tensor operator-(Operand x) { return neg(std::move(x)); }

}  // namespace gt
