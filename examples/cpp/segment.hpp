// A segment under way: instructions in static single-assignment form, as the body of a `Define` has them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gt.hpp"
#include "messages.hpp"

namespace gt {

class Segment {
 public:
  using Path = std::vector<std::string>;

  std::int64_t size() const { return size_; }
  bool is_full() const;

  // Operands, as the wire numbers them: 4 · index + kind.
  static std::int64_t output(std::int64_t instruction) { return 4 * instruction; }
  std::int64_t input(std::int64_t tensor, const Spec& spec);
  std::int64_t scalar(const Scalar& value);

  // Adds an instruction and returns its number, which is also that of its output.
  std::int64_t add(const std::string& op, const std::vector<std::int64_t>& operands, const Attributes& attributes,
                   const Path& path, const Site& site);

  Bytes body(const std::vector<std::int64_t>& survivors) const;        // the definition: equal segments have equal bytes
  const std::vector<std::int64_t>& inputs() const { return inputs_; }  // the ids of the tensors that it reads
  const std::vector<Scalar>& scalars() const { return scalars_; }

 private:
  std::int64_t size_ = 0;
  std::vector<std::int64_t> inputs_;
  std::vector<Spec> specs_;
  std::map<std::int64_t, std::int64_t> positions_;  // of inputs, by tensor
  std::vector<Scalar> scalars_;
  std::map<std::pair<Path, std::string>, std::size_t> tags_;
  std::vector<std::pair<Path, std::string>> tag_list_;
  Bytes packed_;  // the instructions
};

}  // namespace gt
