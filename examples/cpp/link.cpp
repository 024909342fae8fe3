#include "link.hpp"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iostream>

namespace gt::wire {
namespace {

constexpr long look_milliseconds = 100;
constexpr double reason_seconds = 1;  // in which the control socket may say why the bulk socket is not known any more
constexpr int goodbye_milliseconds = 1000;

std::string first_line(const char* path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  std::array<char, 256> target{};
  const ssize_t size = readlink(path, target.data(), target.size());
  return size < 0 ? std::string() : std::string(target.data(), static_cast<std::size_t>(size));
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// How to reach a socket of the service which listens at all addresses of its machine: by the host that reached the service.
std::string reachable(const std::string& listening, const std::string& address) {
  for (const char* wildcard : {"tcp://0.0.0.0:", "tcp://*:", "tcp://[::]:"}) {
    if (listening.rfind(wildcard, 0) == 0) {
      return address.substr(0, address.rfind(':')) + listening.substr(listening.rfind(':'));
    }
  }
  return listening;
}

std::optional<Keys> keys_for(const std::string& address, const std::string& path) {
  const char* named = std::getenv("GT_KEY");
  const std::string chosen = !path.empty() ? path : named != nullptr ? named : "";
  if (chosen.empty() || address.rfind("tcp://", 0) != 0) return std::nullopt;
  return read_keys(chosen);
}

}  // namespace

Link::Link(const std::string& address, const Options& options)
    : address_(address), options_(options), keys_(keys_for(address, options.key)), context_(zmq_ctx_new()),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      streams_([this](Frames frames) { if (bulk_) bulk_->send(std::move(frames)); },
               [this](const StreamKey& key, const Bytes& values) { on_bulk_value(key, values); }) {
  try {
    control_ = std::make_unique<Connection>(context_, address_, new_identity(), keys_,
                                            options_.lease_seconds > 0 ? options_.lease_seconds : default_lease_seconds);
    control_->send({hello()});
    thread_ = std::thread([this] { loop(); });
    Lock lock(mutex_);
    const auto ready = [this] { return welcomed_ || queued_ || ended_.has_value(); };
    if (!changed_.wait_for(lock, std::chrono::duration<double>(options_.connect_seconds), ready)) {
      const char* why = control_->refused() ? "; it does not accept this key, or is another service than the key is for" : "";
      throw Error("ConnectionFailed", address_ + " did not answer in time" + why);
    }
    wait(lock, [this] { return welcomed_; });  // as long as it takes, in a queue
  } catch (...) {
    close();
    throw;
  }
}

Link::~Link() { close(); }

Bytes Link::hello() const {
  Writer writer;
  writer.message(Code::hello, 3).add(version).add(std::string("client"));
  writer.map(6).add(std::string("bulk")).bytes(bulk_identity_);
  writer.add(std::string("pid")).add(static_cast<std::int64_t>(getpid()));
  writer.add(std::string("host")).add(host_name());
  writer.add(std::string("namespace")).add(link_target("/proc/self/ns/pid"));
  writer.add(std::string("boot")).add(first_line("/proc/sys/kernel/random/boot_id"));
  writer.add(std::string("program")).add(options_.program);
  return writer.take();
}

// the program's side

void Link::wake() {
  const std::uint64_t one = 1;
  while (write(wake_fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

template <class Ready>
void Link::wait(Lock& lock, Ready ready) {
  changed_.wait(lock, [&] { return ended_.has_value() || ready(); });
  if (ended_) throw Error(*ended_);
}

void Link::check() {
  const Lock lock(mutex_);
  if (ended_) throw Error(*ended_);
  if (pending_) {
    const Error error = *pending_;
    pending_.reset();
    throw Error(error);
  }
}

void Link::say(Frames frames) {
  const Lock lock(mutex_);
  if (ended_) throw Error(*ended_);
  outgoing_.push_back(std::move(frames));
  wake();
}

void Link::say_counted(Frames frames) {
  Lock lock(mutex_);
  wait(lock, [this] { return counted_ < done_ + credits_; });
  ++counted_;
  outgoing_.push_back(std::move(frames));
  wake();
}

void Link::put(std::int64_t tensor, const Spec& spec, const std::vector<std::string>& path, Bytes values) {
  const bool bulk = values.size() > max_inline_bytes;
  Writer writer;
  writer.message(Code::put, 4).add(tensor).spec(spec).add(path).add(bulk);
  if (bulk) {
    const Lock lock(mutex_);
    puts_[tensor] = {spec, std::move(values)};
    values.clear();
  }
  say_counted({writer.take(), std::move(values)});
}

Bytes Link::fetch(std::int64_t tensor) {
  Lock lock(mutex_);
  if (ended_) throw Error(*ended_);
  const std::uint64_t request = ++last_request_;
  Writer writer;
  writer.message(Code::fetch, 2).add(request).add(tensor);
  Fetch& fetch = fetches_[request];
  outgoing_.push_back({writer.take()});
  wake();
  changed_.wait(lock, [&] { return fetch.error || fetch.parts == 0 || ended_; });
  Fetch answered = std::move(fetch);
  fetches_.erase(request);
  if (answered.error) throw Error(*answered.error);
  if (answered.parts != 0) throw Error(*ended_);
  return std::move(answered.values);
}

int Link::workers() {
  const Lock lock(mutex_);
  return workers_;
}

std::size_t Link::reconnects() {
  const Lock lock(mutex_);
  return (control_ ? control_->reconnects() : 0) + (bulk_ ? bulk_->reconnects() : 0);
}

void Link::close() {
  {
    const Lock lock(mutex_);
    closing_ = true;
  }
  if (context_ == nullptr) return;
  wake();
  if (thread_.joinable()) thread_.join();
  control_.reset();
  bulk_.reset();
  zmq_ctx_term(context_);
  context_ = nullptr;
  ::close(wake_fd_);
}

// the thread's side

void Link::loop() {
  for (;;) {
    const bool well = wait_for_sockets();
    const Lock lock(mutex_);
    try {
      if (!well) throw Error("SessionError", "libzmq cannot wait for the sockets");
      round();
    } catch (const Error& error) {
      end(error);
    } catch (const std::exception& error) {
      end(Error("SessionError", error.what()));
    }
    changed_.notify_all();
    if (ended_) return;
  }
}

bool Link::wait_for_sockets() {
  std::vector<zmq_pollitem_t> items{{nullptr, wake_fd_, ZMQ_POLLIN, 0}};
  for (const Connection* each : {control_.get(), bulk_.get()}) {
    if (each == nullptr) continue;
    items.push_back({each->socket(), 0, ZMQ_POLLIN, 0});
    items.push_back({each->monitor(), 0, ZMQ_POLLIN, 0});
  }
  return zmq_poll(items.data(), static_cast<int>(items.size()), look_milliseconds) >= 0 || errno == EINTR;
}

void Link::round() {
  std::uint64_t woken = 0;
  while (read(wake_fd_, &woken, sizeof woken) < 0 && errno == EINTR) {
  }
  for (; !outgoing_.empty(); outgoing_.pop_front()) control_->send(std::move(outgoing_.front()));
  if (closing_) {
    say_goodbye();
    return;
  }
  while (const auto frames = control_->receive()) {
    hear_control(*frames);
    if (ended_) return;
  }
  while (bulk_) {
    const auto frames = bulk_->receive();
    if (!frames) break;
    streams_.handle(*frames);
  }
  look();
}

void Link::say_goodbye() {
  Writer writer;
  writer.message(Code::goodbye, 2).add(std::string()).add(std::string());
  if (welcomed_) control_->send({writer.take()});
  control_->close(welcomed_ ? goodbye_milliseconds : 0);
  if (bulk_) bulk_->close(0);
  end(Error("SessionError", "the session was closed"));
}

void Link::end(const Error& error) {
  if (!ended_) ended_ = error;
}

void Link::look() {
  const double now = clock_.look();
  control_->look(now);
  if (bulk_) bulk_->look(now);
  const bool bulk_unknown = bulk_ && bulk_->is_unknown();
  if (bulk_unknown && bulk_unknown_since_ < 0) bulk_unknown_since_ = now;
  if (control_->is_unknown() || (bulk_unknown && now - bulk_unknown_since_ > reason_seconds)) {
    end(Error("SessionError", address_ + " does not know this session any more: it was started again since, or has given the "
                              "session up; its tensors are gone: open another gt::Session and put them again"));
  }
  for (const Connection* each : {control_.get(), bulk_.get()}) {
    if (each != nullptr && !each->failure().empty()) end(Error("SessionError", "the service is lost: " + each->failure()));
  }
}

void Link::tell(const std::string& text) {
  if (options_.notice) options_.notice(text);
  else std::cerr << "gt: " << text << '\n';
}

void Link::hear_control(const Frames& frames) {
  const Reader message(frames.front());
  switch (static_cast<Code>(message.number(0))) {
    case Code::welcome: on_welcome(message); break;
    case Code::credit: done_ = message.number(1); break;
    case Code::cut: on_cut(message); break;
    case Code::value: on_value(message, frames); break;
    case Code::failed: on_failed(message); break;
    case Code::peer_lost: on_peer_lost(message); break;
    case Code::notice: tell(message.text(1)); break;
    case Code::queued:
      queued_ = true;
      tell("the session waits, number " + std::to_string(message.number(1)) + " in the queue: " + message.text(2));
      break;
    case Code::goodbye: {
      const std::string kind = message.text(1), text = message.text(2);
      end(Error(kind.empty() ? "SessionError" : kind, "the service ended the session: " + (text.empty() ? "it stops" : text)));
      break;
    }
    default: break;  // a sign of life, or of no use to this client
  }
}

void Link::on_welcome(const Reader& message) {
  number_ = message.number(1);
  std::string bulk_address;
  double lease = default_lease_seconds;
  for (const auto& [name, value] : Reader::as<std::map<std::string, msgpack::object>>(message.at(2))) {
    if (name == "credits") credits_ = Reader::as<std::uint64_t>(value);
    if (name == "workers") workers_ = Reader::as<int>(value);
    if (name == "lease") lease = Reader::as<double>(value);
    if (name == "bulk_address") bulk_address = Reader::as<std::string>(value);
  }
  if (options_.lease_seconds > 0) lease = options_.lease_seconds;
  control_->set_lease(lease);
  bulk_ = std::make_unique<Connection>(context_, reachable(bulk_address, address_), bulk_identity_, keys_, lease);
  welcomed_ = true;
}

void Link::on_cut(const Reader& message) {
  const auto found = puts_.find(Reader::as<std::int64_t>(message.at(1)));
  if (found == puts_.end()) return;
  const Put& put = found->second;
  for (const msgpack::object& part : Reader::as<std::vector<msgpack::object>>(message.at(2))) {
    const auto fields = Reader::as<std::array<msgpack::object, 3>>(part);
    const auto worker = Reader::as<std::uint64_t>(fields[0]);
    const StreamKey key{put_stream, number_, static_cast<std::uint64_t>(found->first), worker};
    Bytes values = cut_out(put.values, put.spec, Box::read(fields[2], put.spec));
    streams_.begin_put(key, Reader::as<std::string>(fields[1]), std::move(values), item_bytes(put.spec.dtype));
  }
  puts_.erase(found);
}

void Link::on_value(const Reader& message, const Frames& frames) {
  const std::uint64_t request = message.number(1);
  const auto said = Reader::as<std::array<msgpack::object, 2>>(message.at(2));
  const Spec spec{dtype_named(Reader::as<std::string>(said[0])), Reader::as<Shape>(said[1])};
  const Box box = Box::read(message.at(4), spec);
  const auto found = fetches_.find(request);
  const bool wanted = found != fetches_.end() && !found->second.error;
  if (wanted && found->second.parts < 0) {
    found->second.spec = spec;
    found->second.parts = Reader::as<std::int64_t>(message.at(3));
    found->second.values.resize(spec.nbytes());
  }
  if (Reader::as<bool>(message.at(7))) {  // also of a value that nobody wants any more, so that the worker can let it go
    const std::uint64_t worker = message.number(5);
    if (wanted) found->second.boxes[worker] = box;
    const std::size_t nbytes = static_cast<std::size_t>(box.size()) * item_bytes(spec.dtype);
    streams_.begin_fetch({fetch_stream, number_, request, worker}, message.text(6), nbytes);
  } else if (wanted) {
    part_came(found->second, box, frames.size() > 1 ? frames[1] : Bytes());
  }
}

void Link::on_bulk_value(const StreamKey& key, const Bytes& values) {
  const auto found = fetches_.find(key[2]);
  if (found == fetches_.end() || found->second.error) return;
  part_came(found->second, found->second.boxes.at(key[3]), values);
}

void Link::part_came(Fetch& fetch, const Box& box, const Bytes& values) {
  if (!box.silent) put_in(fetch.values, fetch.spec, box, values);
  --fetch.parts;
}

void Link::on_failed(const Reader& message) {
  const std::uint64_t request = message.number(1);
  const Error error(message.text(2), message.text(3));
  const auto found = fetches_.find(request);
  if (found != fetches_.end()) {
    found->second.error = error;
  } else if (request == 0 && !pending_) {  // those that follow are often of what the first one left undone
    pending_ = error;
  }
}

void Link::on_peer_lost(const Reader& message) {
  for (auto& [request, fetch] : fetches_) {
    if (fetch.parts > 0) fetch.error = Error("WorkerLost", message.text(2));  // parts have begun to come; the rest may never
  }
  streams_.break_off(message.number(1));
}

}  // namespace gt::wire
