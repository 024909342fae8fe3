#include "messages.hpp"

#include <functional>

namespace gt::wire {

Writer& Writer::bytes(const Bytes& value) {
  packer_.pack_bin(static_cast<std::uint32_t>(value.size()));
  packer_.pack_bin_body(value.data(), static_cast<std::uint32_t>(value.size()));
  return *this;
}

Writer& Writer::numbers(const std::vector<std::int64_t>& values) {
  array(values.size());
  for (const std::int64_t value : values) add(value);
  return *this;
}

Writer& Writer::spec(const Spec& spec) {
  array(2).add(std::string(wire_name(spec.dtype)));
  return numbers(spec.shape);
}

Reader::Reader(const Bytes& packed) {
  try {
    handle_ = msgpack::unpack(packed.data(), packed.size());
  } catch (const msgpack::unpack_error&) {
    throw Error("ProtocolError", "a message is no msgpack");
  }
  if (handle_->type != msgpack::type::ARRAY) throw Error("ProtocolError", "a message is an array");
}

const msgpack::object& Reader::at(std::size_t position) const {
  if (position >= handle_->via.array.size) throw Error("ProtocolError", "a message lacks fields");
  return handle_->via.array.ptr[position];
}

Box Box::read(const msgpack::object& object, const Spec& whole) {
  Box box;
  for (const msgpack::object& each : Reader::as<std::vector<msgpack::object>>(object)) {
    if (each.type == msgpack::type::ARRAY && each.via.array.size == 1) {  // [['silent']]
      box.silent = true;
      return box;
    }
    box.ranges.push_back(Reader::as<std::array<std::int64_t, 2>>(each));
  }
  bool fits = box.ranges.size() == whole.shape.size();
  for (std::size_t at = 0; fits && at < box.ranges.size(); ++at) {
    fits = 0 <= box.ranges[at][0] && box.ranges[at][0] <= box.ranges[at][1] && box.ranges[at][1] <= whole.shape[at];
  }
  if (!fits) throw Error("ProtocolError", "a part is not within its tensor");
  return box;
}

std::int64_t Box::size() const {
  std::int64_t size = 1;
  for (const auto& range : ranges) size *= range[1] - range[0];
  return size;
}

namespace {

// Calls `row(offset of it in the whole, offset in the part, bytes)` for each row of a box.
void for_each_row(const Spec& whole, const Box& box, const std::function<void(std::size_t, std::size_t, std::size_t)>& row) {
  const std::size_t item = item_bytes(whole.dtype);
  if (box.size() == 0) return;
  if (box.ranges.empty()) return row(0, 0, item);
  const std::size_t last = box.ranges.size() - 1;
  const auto width = static_cast<std::size_t>(box.ranges[last][1] - box.ranges[last][0]) * item;
  std::vector<std::int64_t> at;
  for (const auto& range : box.ranges) at.push_back(range[0]);
  for (std::size_t done = 0;; done += width) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis <= last; ++axis) offset = offset * whole.shape[axis] + at[axis];
    row(static_cast<std::size_t>(offset) * item, done, width);
    std::size_t axis = last;
    while (axis > 0 && ++at[axis - 1] == box.ranges[axis - 1][1]) {
      at[axis - 1] = box.ranges[axis - 1][0];
      --axis;
    }
    if (axis == 0) return;
  }
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at++]);
    if (first < 0x80) continue;
    const int following = first >= 0xc2 && first < 0xe0 ? 1 : first >= 0xe0 && first < 0xf0 ? 2 : first >= 0xf0 && first < 0xf5 ? 3 : 0;
    if (following == 0 || text.size() - at < static_cast<std::size_t>(following)) return false;
    std::uint32_t character = first & (0x3fU >> following);
    for (int each = 0; each < following; ++each) {
      const auto next = static_cast<unsigned char>(text[at++]);
      if ((next & 0xc0U) != 0x80) return false;
      character = character << 6 | (next & 0x3fU);
    }
    const std::uint32_t least = following == 1 ? 0x80 : following == 2 ? 0x800 : 0x10000;
    if (character < least || character > 0x10ffff || (character >= 0xd800 && character < 0xe000)) return false;
  }
  return true;
}

Bytes cut_out(const Bytes& values, const Spec& whole, const Box& box) {
  if (box.size() == whole.size()) return values;
  Bytes part(static_cast<std::size_t>(box.size()) * item_bytes(whole.dtype), '\0');
  for_each_row(whole, box, [&](std::size_t there, std::size_t here, std::size_t bytes) {
    std::memcpy(part.data() + here, values.data() + there, bytes);
  });
  return part;
}

void put_in(Bytes& values, const Spec& whole, const Box& box, const Bytes& part) {
  if (part.size() != static_cast<std::size_t>(box.size()) * item_bytes(whole.dtype)) {
    throw Error("ProtocolError", "a part has not the bytes of its box");
  }
  for_each_row(whole, box, [&](std::size_t there, std::size_t here, std::size_t bytes) {
    std::memcpy(values.data() + there, part.data() + here, bytes);
  });
}

}  // namespace gt::wire
