// Messages as msgpack (docs/protocol.md, "Messages as frames"), and parts of tensors.
#pragma once

#include <msgpack.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gt.hpp"

namespace gt::wire {

// The codes of the messages that a client says or hears.
enum class Code : std::uint32_t {
  hello = 0, welcome = 1, ping = 2, goodbye = 3, define = 5, drop = 6, run = 7, put = 8, free = 9, fetch = 10,
  credit = 12, cut = 13, value = 14, failed = 15, peer_lost = 26, notice = 34, queued = 88,
};

// Whether a text is UTF-8 as RFC 3629 has it. The service hears nothing more of a session that has sent another one.
bool is_utf8(std::string_view text);

// Writes one msgpack value after the other.
class Writer {
 public:
  Writer& array(std::size_t size) { packer_.pack_array(static_cast<std::uint32_t>(size)); return *this; }
  Writer& map(std::size_t size) { packer_.pack_map(static_cast<std::uint32_t>(size)); return *this; }
  Writer& bytes(const Bytes& value);
  Writer& numbers(const std::vector<std::int64_t>& values);
  Writer& spec(const Spec& spec);
  template <class T>
  Writer& add(const T& value) { packer_.pack(value); return *this; }
  // The beginning of a message with so many fields in its first frame.
  Writer& message(Code code, std::size_t fields) { return array(fields + 1).add(static_cast<std::uint32_t>(code)); }
  void raw(const Bytes& packed) { buffer_.write(packed.data(), packed.size()); }
  Bytes take() { return {buffer_.data(), buffer_.size()}; }

 private:
  msgpack::sbuffer buffer_;
  msgpack::packer<msgpack::sbuffer> packer_{buffer_};
};

// One msgpack array that has come. Reading what is not there throws ProtocolError.
class Reader {
 public:
  explicit Reader(const Bytes& packed);
  const msgpack::object& at(std::size_t position) const;
  std::uint64_t number(std::size_t position) const { return as<std::uint64_t>(at(position)); }
  std::string text(std::size_t position) const { return as<std::string>(at(position)); }

  template <class T>
  static T as(const msgpack::object& object) {
    try {
      return object.as<T>();
    } catch (const msgpack::type_error&) {
      throw Error("ProtocolError", "a field of a message has another form");
    }
  }

 private:
  msgpack::object_handle handle_;
};

// A part of a tensor: [start, stop) for each dimension.
struct Box {
  std::vector<std::array<std::int64_t, 2>> ranges;
  bool silent = false;  // it has no values

  static Box read(const msgpack::object& object, const Spec& whole);
  std::int64_t size() const;
};

Bytes cut_out(const Bytes& values, const Spec& whole, const Box& box);             // the values of a part
void put_in(Bytes& values, const Spec& whole, const Box& box, const Bytes& part);  // writes them

}  // namespace gt::wire
