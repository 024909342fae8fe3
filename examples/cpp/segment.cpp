#include "segment.hpp"

namespace gt {
namespace {

constexpr std::int64_t most_instructions = 512;
constexpr std::size_t most_inputs = 4096, most_scalars = 16384;  // an instruction adds at most 512 of either
constexpr std::size_t most_bytes = std::size_t{4} << 20;

}  // namespace

bool Segment::is_full() const {
  return size_ >= most_instructions || inputs_.size() >= most_inputs || scalars_.size() >= most_scalars ||
         packed_.size() >= most_bytes;
}

std::int64_t Segment::input(std::int64_t tensor, const Spec& spec) {
  const auto [found, is_new] = positions_.try_emplace(tensor, static_cast<std::int64_t>(inputs_.size()));
  if (is_new) {
    inputs_.push_back(tensor);
    specs_.push_back(spec);
  }
  return 4 * found->second + 1;
}

std::int64_t Segment::scalar(const Scalar& value) {
  scalars_.push_back(value);
  return 4 * static_cast<std::int64_t>(scalars_.size() - 1) + 2;
}

std::int64_t Segment::add(const std::string& op, const std::vector<std::int64_t>& operands, const Attributes& attributes,
                          const Path& path, const Site& site) {
  std::pair<Path, std::string> tag{path, std::string(site.file) + ":" + std::to_string(site.line)};
  const auto [found, is_new] = tags_.try_emplace(tag, tag_list_.size());
  if (is_new) tag_list_.push_back(std::move(tag));
  wire::Writer writer;
  writer.array(4).add(op).numbers(operands).map(attributes.size());
  for (const auto& [name, value] : attributes) {
    writer.add(name);
    if (const auto* dtype = std::get_if<DType>(&value)) writer.add(std::string(wire_name(*dtype)));
    else if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(&value)) writer.numbers(*numbers);
    else if (const auto* number = std::get_if<std::int64_t>(&value)) writer.add(*number);
    else writer.add(std::get<bool>(value));
  }
  packed_ += writer.add(found->second).take();
  return size_++;
}

Bytes Segment::body(const std::vector<std::int64_t>& survivors) const {
  wire::Writer writer;
  writer.array(5).array(specs_.size());
  for (const Spec& spec : specs_) writer.spec(spec);
  std::string kinds;
  for (const Scalar& value : scalars_) kinds.push_back("bif"[value.index()]);
  writer.add(kinds).array(tag_list_.size());
  for (const auto& [path, site] : tag_list_) writer.array(4).add(path).add(0).add(site).array(0);  // 0: forward; no hints
  writer.array(static_cast<std::size_t>(size_)).raw(packed_);
  writer.numbers(survivors);
  return writer.take();
}

}  // namespace gt
