#include "safetensors.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

namespace gt::safetensors {
namespace {

constexpr std::size_t most_header_bytes = 100'000'000;
constexpr std::size_t most_dimensions = 32;
constexpr std::int64_t most_elements = std::int64_t{1} << 48;

const std::map<std::string, DType>& names() {
  static const std::map<std::string, DType> table = {
      {"BOOL", DType::boolean}, {"U8", DType::u8},   {"U16", DType::u16},   {"U32", DType::u32}, {"U64", DType::u64},
      {"I8", DType::i8},        {"I16", DType::i16}, {"I32", DType::i32},   {"I64", DType::i64}, {"F16", DType::f16},
      {"BF16", DType::bf16},    {"F32", DType::f32}, {"F64", DType::f64},   {"C64", DType::c64},
  };
  return table;
}

// As much JSON as a header has: an object of objects of strings, numbers from 0 and lists of these.
class Header {
 public:
  Header(const std::string& path, const Bytes& text) : path_(path), text_(text) {}

  struct Entry {
    std::string dtype;
    Shape shape, offsets;
  };

  std::map<std::string, Entry> read() {
    std::map<std::string, Entry> entries;
    object([&](const std::string& name) {
      Entry entry;
      object([&](const std::string& key) {
        if (name == "__metadata__") string();
        else if (key == "dtype") entry.dtype = string();
        else if (key == "shape") entry.shape = numbers();
        else if (key == "data_offsets") entry.offsets = numbers();
        else refuse("its header has a key " + key);
      });
      if (name != "__metadata__" && !entries.emplace(name, entry).second) refuse("it has two tensors " + name);
    });
    if (peek() != end) refuse("its header goes on behind its end");
    return entries;
  }

  [[noreturn]] void refuse(const std::string& what) const { throw Error("FileError", path_ + " is no safetensors file: " + what); }

 private:
  static constexpr int end = -1;

  int peek() {
    while (at_ < text_.size() && std::string_view(" \n\t\r").find(text_[at_]) != std::string_view::npos) ++at_;
    return at_ < text_.size() ? static_cast<unsigned char>(text_[at_]) : end;
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) refuse(std::string("its header lacks a ") + wanted + " at byte " + std::to_string(at_));
  }

  template <class Member>
  void object(Member member) {
    expect('{');
    if (take('}')) return;
    do {
      const std::string name = string();
      expect(':');
      member(name);
    } while (take(','));
    expect('}');
  }

  std::string string() {
    expect('"');
    std::string value;
    while (at_ < text_.size() && text_[at_] != '"') {
      char next = text_[at_++];
      if (next == '\\') {
        if (at_ == text_.size()) break;
        const std::size_t which = std::string_view("\"\\/bfnrt").find(text_[at_++]);
        if (which == std::string_view::npos) refuse("its header has an escape that this reader does not know");
        next = "\"\\/\b\f\n\r\t"[which];
      }
      value.push_back(next);
    }
    if (at_ == text_.size()) refuse("its header ends too soon");
    ++at_;
    return value;
  }

  Shape numbers() {
    Shape values;
    expect('[');
    if (take(']')) return values;
    do {
      peek();
      std::int64_t value = 0;
      const std::size_t begin = at_;
      for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
        if (value > (std::numeric_limits<std::int64_t>::max() - 9) / 10) refuse("its header has a number that is too large");
        value = 10 * value + (text_[at_] - '0');
      }
      if (at_ == begin) refuse("its header lacks a number");
      values.push_back(value);
    } while (take(','));
    expect(']');
    return values;
  }

  const std::string& path_;
  const Bytes& text_;
  std::size_t at_ = 0;
};

// Whether a shape is one that a tensor may have, so that its size can be computed.
bool is_possible(const Shape& shape) {
  std::int64_t size = 1;
  for (const std::int64_t each : shape) {
    if (each > most_elements || (each > 0 && size > most_elements / each)) return false;
    size *= each;
  }
  return shape.size() <= most_dimensions;
}

}  // namespace

std::map<std::string, Array> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code unknown;
  if (!file || std::filesystem::is_directory(path, unknown)) throw Error("FileError", path + " cannot be opened");
  const Bytes bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::uint64_t length = 0;
  for (std::size_t at = 0; at < 8 && at < bytes.size(); ++at) {
    length |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[at])) << (8 * at);
  }
  const bool whole = bytes.size() >= 8 && length <= most_header_bytes && length <= bytes.size() - 8;
  const Bytes text = whole ? bytes.substr(8, length) : Bytes();
  Header header(path, text);
  if (!whole) header.refuse("it is shorter than its header");
  const std::size_t start = 8 + length, available = bytes.size() - start;
  std::map<std::string, Array> arrays;
  for (const auto& [name, entry] : header.read()) {
    const auto dtype = names().find(entry.dtype);
    if (dtype == names().end()) header.refuse(name + " has the dtype " + entry.dtype);
    if (!is_possible(entry.shape)) header.refuse(name + " is larger than a tensor may be");
    const Spec spec{dtype->second, entry.shape};
    const Shape& at = entry.offsets;
    if (at.size() != 2 || at[0] > at[1] || static_cast<std::uint64_t>(at[1]) > available ||
        static_cast<std::size_t>(at[1] - at[0]) != spec.nbytes()) {
      header.refuse(name + " does not have the bytes of its shape");
    }
    arrays[name] = {spec, bytes.substr(start + static_cast<std::size_t>(at[0]), spec.nbytes())};
  }
  return arrays;
}

void write(const std::string& path, const std::map<std::string, Array>& arrays) {
  std::string header = "{", values;
  for (const auto& [name, array] : arrays) {
    if (name.find_first_of("\"\\") != std::string::npos) throw Error("FileError", "a name of a tensor has no quotes: " + name);
    const DType held = array.spec.dtype;
    const auto dtype = std::find_if(names().begin(), names().end(), [held](const auto& each) { return each.second == held; });
    if (dtype == names().end()) throw Error("FileError", "safetensors files do not hold complex128: " + name);
    std::string shape;
    for (const std::int64_t size : array.spec.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
    header += (header.size() > 1 ? ",\"" : "\"") + name + "\":{\"dtype\":\"" + dtype->first + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(values.size()) + "," + std::to_string(values.size() + array.values.size()) +
              "]}";
    values += array.values;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::ofstream file(path, std::ios::binary);
  for (std::size_t byte = 0; byte < 8; ++byte) file.put(static_cast<char>((header.size() >> (8 * byte)) & 0xff));
  file << header << values;
  if (!file.flush()) throw Error("FileError", path + " cannot be written");
}

}  // namespace gt::safetensors
