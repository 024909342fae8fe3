#include "core.hpp"

#include <algorithm>
#include <iterator>

namespace gt {
namespace {

constexpr std::size_t most_definitions = 256;
constexpr std::size_t most_ids = 8192;  // of a list in a message
constexpr std::size_t deepest_path = 128, longest_name = 200, longest_path = 4096;
constexpr std::size_t most_dimensions = 32;

const Options& checked(const Options& options) {
  if (!wire::is_utf8(options.program)) throw Error("ProtocolError", "the name of the program is not UTF-8");
  return options;
}

}  // namespace

Value::~Value() {
  if (id >= 0) core->free_later(id);
}

std::shared_ptr<Value> Core::put(const void* values, const Spec& spec) {
  link.check();
  for (const std::int64_t size : spec.shape) {
    if (size < 0) throw Error("ShapeError", "put: a shape has sizes from 0 on, not " + std::to_string(size));
  }
  if (spec.shape.size() > most_dimensions) {
    throw Error("ShapeError", "put: a shape has at most 32 dimensions, not " + std::to_string(spec.shape.size()));
  }
  Bytes copy(static_cast<const char*>(values), spec.nbytes());
  const std::int64_t id = next_tensor_++;
  link.put(id, spec, path, std::move(copy));
  auto value = std::make_shared<Value>(shared_from_this(), spec);
  value->id = id;
  return value;
}

std::shared_ptr<Value> Core::emit(const std::string& op, const std::vector<Operand>& operands, const Attributes& attributes,
                                  const Spec& result, const Site& site) {
  link.check();
  if (segment_.is_full() || dead_.size() >= most_ids) flush();
  std::vector<std::int64_t> references;
  for (const Operand& operand : operands) {
    if (const auto* number = std::get_if<Scalar>(&operand.what)) {
      references.push_back(segment_.scalar(*number));
      continue;
    }
    const Value& value = *std::get<Tensor>(operand.what).value();
    references.push_back(value.id < 0 ? Segment::output(value.instruction) : segment_.input(value.id, value.spec));
  }
  auto value = std::make_shared<Value>(shared_from_this(), result);
  value->instruction = segment_.add(op, references, attributes, path, site);
  outputs_.push_back(value);
  return value;
}

void Core::flush() {
  const Segment segment = std::move(segment_);
  segment_ = Segment();
  std::vector<std::shared_ptr<Value>> alive;
  std::vector<std::int64_t> survivors;
  for (const auto& output : outputs_) {
    if (auto value = output.lock()) {
      survivors.push_back(value->instruction);
      alive.push_back(std::move(value));
    }
  }
  outputs_.clear();
  if (survivors.empty()) {  // nobody can ask for what it computes
    free_now();
    return;
  }
  const std::int64_t base = next_tensor_;
  next_tensor_ += segment.size();
  for (const auto& value : alive) value->id = base + value->instruction;

  const std::vector<std::int64_t>& inputs = segment.inputs();
  std::vector<std::int64_t> read = inputs, dying, freed;
  std::sort(dead_.begin(), dead_.end());
  std::sort(read.begin(), read.end());
  for (std::size_t at = 0; at < inputs.size(); ++at) {
    if (std::binary_search(dead_.begin(), dead_.end(), inputs[at])) dying.push_back(static_cast<std::int64_t>(at));
  }
  std::set_difference(dead_.begin(), dead_.end(), read.begin(), read.end(), std::back_inserter(freed));
  dead_.clear();
  if (freed.size() > most_ids) {  // too many for a run: they leave by themselves
    dead_.swap(freed);
    free_now();
  }
  const std::int64_t definition = defined(segment.body(survivors));
  wire::Writer run;
  run.message(wire::Code::run, 7).add(definition).add(base).numbers(inputs).array(segment.scalars().size());
  for (const Scalar& scalar : segment.scalars()) std::visit([&run](const auto& number) { run.add(number); }, scalar);
  link.say_counted({run.numbers(dying).numbers(freed).numbers({}).take()});
}

std::int64_t Core::defined(const Bytes& body) {
  if (const auto found = known_.find(body); found != known_.end()) {
    definitions_.splice(definitions_.begin(), definitions_, found->second);
    return definitions_.front().second;
  }
  if (definitions_.size() >= most_definitions) {
    wire::Writer drop;
    link.say({drop.message(wire::Code::drop, 1).add(definitions_.back().second).take()});
    known_.erase(definitions_.back().first);
    definitions_.pop_back();
  }
  const std::int64_t number = next_definition_++;
  wire::Writer define;
  link.say({define.message(wire::Code::define, 1).add(number).take(), body});
  definitions_.emplace_front(body, number);
  known_[body] = definitions_.begin();
  return number;
}

void Core::free_now() {
  while (!dead_.empty()) {
    const std::size_t count = std::min(dead_.size(), most_ids);
    const std::vector<std::int64_t> ids(dead_.end() - static_cast<std::ptrdiff_t>(count), dead_.end());
    dead_.resize(dead_.size() - count);
    wire::Writer message;
    link.say({message.message(wire::Code::free, 1).numbers(ids).take()});
  }
}

Bytes Core::fetch(const Value& value) {
  link.check();
  flush();
  Bytes bytes = link.fetch(value.id);
  if (bytes.size() != value.spec.nbytes()) {
    throw Error("ShapeError", "what was computed has " + std::to_string(bytes.size()) + " bytes, and not the " +
                                  std::to_string(value.spec.nbytes()) + " of the dtype and shape that instruction() was told");
  }
  return bytes;
}

// the public face of all this

Session::Session(const std::string& address, const Options& options) : core_(std::make_shared<Core>(address, checked(options))) {}
Session::Session(Session&&) noexcept = default;
Session::~Session() {
  if (core_) core_->link.close();
}

Tensor Session::put(const void* values, const Spec& spec) { return Tensor(core_->put(values, spec)); }

Tensor Session::full(const Shape& shape, Scalar value, DType dtype, Site site) {
  const Operand operand = std::visit([&site](auto number) { return Operand(number, site); }, value);
  return Tensor(core_->emit("full", {operand}, {{"shape", shape}, {"dtype", dtype}}, {dtype, shape}, site));
}

Tensor Session::parameter(const Tensor& values, Site site) {
  return Tensor(core_->emit("tag", {Operand(values, site)}, {{"param", true}}, values.spec(), site));
}

void Session::flush() {
  core_->link.check();
  core_->flush();
}

void Session::close() { core_->link.close(); }
int Session::workers() const { return core_->link.workers(); }
std::size_t Session::reconnects() const { return core_->link.reconnects(); }

Signal::Signal(Session& session, const std::string& name) : core_(session.core()) {
  std::size_t length = name.size();
  for (const std::string& each : core_->path) length += each.size() + 1;
  if (name.empty() || name.size() > longest_name || length > longest_path || core_->path.size() >= deepest_path) {
    throw Error("ConfigError", "no signal '" + name + "' can be here: a name has 1 to 200 characters, a path at most 128 names");
  }
  if (!wire::is_utf8(name)) throw Error("ConfigError", "the name of a signal is not UTF-8");
  core_->path.push_back(name);
}

Signal::~Signal() { core_->path.pop_back(); }

const Spec& Tensor::spec() const {
  if (!value_) throw Error("SessionError", "a tensor that was made of nothing");
  return value_->spec;
}

Bytes Tensor::fetch() const {
  spec();
  return value_->core->fetch(*value_);
}

void Tensor::check_dtype(DType wanted) const {
  if (dtype() == wanted) return;
  throw Error("DTypeError", "values of " + std::string(wire_name(dtype())) + " were asked for as " + std::string(wire_name(wanted)));
}

}  // namespace gt
