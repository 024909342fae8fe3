// What a session's handles share: the segment under way, definitions that the service has, and tensors to be freed.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "gt.hpp"
#include "link.hpp"
#include "segment.hpp"

namespace gt {

// A tensor of the session. It has an id once it was put, or once the segment that computes it was sent.
struct Value {
  std::shared_ptr<Core> core;
  Spec spec;
  std::int64_t id = -1;
  std::int64_t instruction = -1;  // in the segment under way

  Value(std::shared_ptr<Core> owner, Spec what) : core(std::move(owner)), spec(std::move(what)) {}
  ~Value();
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
};

class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(const std::string& address, const Options& options) : link(address, options) {}

  std::shared_ptr<Value> put(const void* values, const Spec& spec);
  std::shared_ptr<Value> emit(const std::string& op, const std::vector<Operand>& operands, const Attributes& attributes,
                              const Spec& result, const Site& site);
  Bytes fetch(const Value& value);
  void flush();
  void free_later(std::int64_t id) { dead_.push_back(id); }

  wire::Link link;
  std::vector<std::string> path;  // of the signals that the program is inside

 private:
  std::int64_t defined(const Bytes& body);
  void free_now();

  Segment segment_;
  std::vector<std::weak_ptr<Value>> outputs_;  // of the segment, by instruction
  std::vector<std::int64_t> dead_;
  std::int64_t next_tensor_ = 1, next_definition_ = 1;
  std::list<std::pair<Bytes, std::int64_t>> definitions_;  // the last used first
  std::unordered_map<Bytes, std::list<std::pair<Bytes, std::int64_t>>::iterator> known_;
};

}  // namespace gt
