#include "wire.hpp"

#include <sys/stat.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <random>

namespace gt::wire {
namespace {

constexpr int never_milliseconds = 24 * 3600 * 1000;
constexpr double longest_look_seconds = 1;

void put_u64(Bytes& out, std::uint64_t number) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>((number >> shift) & 0xff));
}

std::uint64_t get_u64(const Bytes& in, std::size_t at) {
  std::uint64_t number = 0;
  for (std::size_t byte = 0; byte < 8; ++byte) {
    number |= static_cast<std::uint64_t>(static_cast<unsigned char>(in[at + byte])) << (8 * byte);
  }
  return number;
}

void set(void* socket, int option, int value) { zmq_setsockopt(socket, option, &value, sizeof value); }

void set(void* socket, int option, const std::string& value) {
  if (zmq_setsockopt(socket, option, value.c_str(), value.size()) != 0) {
    throw Error("ConnectionFailed", std::string("libzmq refuses an option: ") + zmq_strerror(errno));
  }
}

std::size_t total_bytes(const Frames& frames) {
  std::size_t total = 0;
  for (const Bytes& frame : frames) total += frame.size();
  return total;
}

}  // namespace

std::string new_identity() {
  std::random_device random;
  std::string identity = "c";  // the first byte is not zero
  while (identity.size() < 20) identity.push_back(static_cast<char>(random() & 0xff));
  return identity;
}

Keys read_keys(const std::string& path) {
  struct stat status {};
  std::ifstream file(path);
  if (!file || stat(path.c_str(), &status) != 0) {
    throw Error("ConnectionFailed", path + " cannot be read; a key file is made with `gt keys new NAME`");
  }
  if ((status.st_mode & 077) != 0) {
    throw Error("ConnectionFailed", path + " can be read by others, so it is no secret: chmod 600 " + path);
  }
  Keys keys;
  for (std::string line; std::getline(file, line);) {  // NAME = "VALUE"
    const auto equals = line.find(" = \"");
    if (equals == std::string::npos || line.back() != '"') continue;
    const std::string name = line.substr(0, equals);
    const std::string value = line.substr(equals + 4, line.size() - equals - 5);
    if (name == "public") keys.public_key = value;
    if (name == "secret") keys.secret_key = value;
    if (name == "service") keys.service_key = value;
  }
  for (const std::string* key : {&keys.public_key, &keys.secret_key, &keys.service_key}) {
    if (key->size() != 40) throw Error("ConnectionFailed", path + " is no key file: make one with `gt keys new NAME`");
  }
  return keys;
}

double ActiveClock::look() {
  const auto real = std::chrono::steady_clock::now();
  now_ += std::min(std::chrono::duration<double>(real - last_).count(), longest_look_seconds);
  last_ = real;
  return now_;
}

// numbers

const Frames& ReliableStream::number(Frames frames) {
  ++sent_;
  frames.front().insert(0, header(sent_));
  kept_.push_back(std::move(frames));
  return kept_.back();
}

Bytes ReliableStream::header(std::uint64_t sequence) {
  owed_messages_ = owed_bytes_ = 0;
  Bytes bytes;
  put_u64(bytes, sequence);
  put_u64(bytes, heard_);
  return bytes;
}

bool ReliableStream::accept(std::uint64_t sequence, std::uint64_t acknowledged, std::size_t nbytes) {
  acknowledge(acknowledged);
  if (sequence <= heard_) return false;  // it comes again
  if (sequence != heard_ + 1) {
    throw Error("ProtocolError", "message " + std::to_string(sequence) + " where " + std::to_string(heard_ + 1) + " was due");
  }
  heard_ = sequence;
  ++owed_messages_;
  owed_bytes_ += nbytes;
  return true;
}

void ReliableStream::acknowledge(std::uint64_t number) {
  if (number > sent_) throw Error("ProtocolError", "the service acknowledges what was never sent");
  for (; acknowledged_ < number; ++acknowledged_) kept_.pop_front();
}

// sockets

Dealer::Dealer(void* context, const std::string& address, const std::string& identity, const std::optional<Keys>& keys)
    : socket_(zmq_socket(context, ZMQ_DEALER)) {
  if (socket_ == nullptr) throw Error("ConnectionFailed", std::string("no socket: ") + zmq_strerror(errno));
  try {
    set(socket_, ZMQ_LINGER, 0);
    set(socket_, ZMQ_SNDHWM, 0);
    set(socket_, ZMQ_RCVHWM, 0);
    set(socket_, ZMQ_RECONNECT_IVL, never_milliseconds);  // with −1 libzmq would not say that an attempt has failed
    set(socket_, ZMQ_ROUTING_ID, identity);
    if (keys && address.rfind("tcp://", 0) == 0) {
      set(socket_, ZMQ_CURVE_PUBLICKEY, keys->public_key);
      set(socket_, ZMQ_CURVE_SECRETKEY, keys->secret_key);
      set(socket_, ZMQ_CURVE_SERVERKEY, keys->service_key);
    }
    const std::string watch = "inproc://monitor-" + std::to_string(reinterpret_cast<std::uintptr_t>(socket_));
    const int events = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                       ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    monitor_ = zmq_socket(context, ZMQ_PAIR);
    set(monitor_, ZMQ_LINGER, 0);
    if (zmq_socket_monitor(socket_, watch.c_str(), events) != 0 || zmq_connect(monitor_, watch.c_str()) != 0 ||
        zmq_connect(socket_, address.c_str()) != 0) {
      throw Error("ConnectionFailed", address + ": " + zmq_strerror(errno));
    }
  } catch (...) {
    zmq_socket_monitor(socket_, nullptr, 0);
    if (monitor_ != nullptr) zmq_close(monitor_);
    zmq_close(socket_);
    throw;
  }
}

Dealer::~Dealer() {
  zmq_socket_monitor(socket_, nullptr, 0);  // before its other end goes, or libzmq's thread would wait for that
  zmq_close(monitor_);
  zmq_close(socket_);
}

void Dealer::send(const Frames& frames) {
  for (std::size_t at = 0; at < frames.size(); ++at) {
    const int more = at + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    if (zmq_send(socket_, frames[at].data(), frames[at].size(), more | ZMQ_DONTWAIT) < 0) return;
  }
}

std::optional<Frames> Dealer::receive() {
  Frames frames;
  for (bool more = true; more;) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      return std::nullopt;
    }
    frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    more = zmq_msg_more(&message) != 0;
    zmq_msg_close(&message);
  }
  return frames;
}

bool Dealer::broken() {
  char event[6];  // the number of the event in 16 bits, then its value; a second frame has the address
  while (zmq_recv(monitor_, event, sizeof event, ZMQ_DONTWAIT) >= 2) {
    std::uint16_t number = 0;
    std::memcpy(&number, event, sizeof number);
    zmq_recv(monitor_, nullptr, 0, ZMQ_DONTWAIT);
    broken_ = true;
    refused_ = refused_ || number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH || number == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
  }
  return broken_;
}

void Dealer::linger(int milliseconds) { set(socket_, ZMQ_LINGER, milliseconds); }

// connections

Connection::Connection(void* context, std::string address, std::string identity, std::optional<Keys> keys, double lease)
    : context_(context), address_(std::move(address)), identity_(std::move(identity)), keys_(std::move(keys)), lease_(lease),
      dealer_(std::make_unique<Dealer>(context_, address_, identity_, keys_)) {
  dealer_->send({stream_.header(open_new)});
}

void Connection::send(Frames frames) {
  const Frames& numbered = stream_.number(std::move(frames));
  if (!resuming_ && dealer_) dealer_->send(numbered);
}

std::optional<Frames> Connection::receive() {
  while (dealer_) {
    std::optional<Frames> frames = dealer_->receive();
    if (!frames) return std::nullopt;
    spoken_ = true;
    Bytes& first = frames->front();
    if (first.size() < header_bytes) throw Error("ProtocolError", "a message without its numbers");
    const std::uint64_t sequence = get_u64(first, 0), acknowledged = get_u64(first, 8);
    const std::size_t nbytes = total_bytes(*frames);
    first.erase(0, header_bytes);
    if (sequence == accepted) {
      on_accepted(acknowledged);
    } else if (sequence == unknown) {
      is_unknown_ = is_unknown_ || ever_accepted_;  // before, it answers an earlier connection of this identity
    } else if (sequence == unnumbered) {
      stream_.acknowledge(std::min(acknowledged, stream_.sent()));
      if (!first.empty()) return frames;
    } else if (answered_ && stream_.accept(sequence, acknowledged, nbytes)) {
      if (stream_.owes_much()) dealer_->send({stream_.header()});
      return frames;
    }
  }
  return std::nullopt;
}

void Connection::on_accepted(std::uint64_t acknowledged) {
  ever_accepted_ = answered_ = true;
  stream_.acknowledge(acknowledged);
  if (resuming_) {
    resuming_ = false;
    for (const Frames& frames : stream_.kept()) dealer_->send(frames);
  }
}

void Connection::look(double now) {
  if (!failure_.empty() || !dealer_) return;
  if (!looked_) {
    looked_ = true;
    heard_at_ = said_at_ = attempt_ = progress_at_ = now;
  }
  if (spoken_) {
    spoken_ = false;
    heard_at_ = now;
  }
  if (now - heard_at_ > lease_) {
    failure_ = address_ + ": no sign of life for " + std::to_string(lease_) + " s";
    return;
  }
  const std::uint64_t progress = stream_.acknowledged() + stream_.heard();
  if (progress != progress_ || stream_.kept().empty()) {
    progress_ = progress;
    progress_at_ = now;
    if (!resuming_) retry_ = first_retry_seconds;
  } else if (now - progress_at_ > lease_) {
    failure_ = address_ + ": nothing has got through for " + std::to_string(lease_) + " s";
    return;
  }
  const bool broken = dealer_->broken(), waiting = resuming_ || !ever_accepted_;
  const double patience = broken || !waiting ? retry_ : max_retry_seconds;
  if (now - attempt_ >= patience && (waiting || broken || now - heard_at_ > std::min(silence_seconds, lease_ / 2))) {
    reopen(now);
  } else if (!resuming_ && now - said_at_ >= heartbeat_seconds) {
    said_at_ = now;
    dealer_->send({stream_.header()});
  }
}

void Connection::reopen(double now) {
  ++reconnects_;
  retry_ = std::min(2 * retry_, max_retry_seconds);
  attempt_ = now;
  answered_ = false;
  resuming_ = true;
  refused_ = refused();
  dealer_.reset();
  dealer_ = std::make_unique<Dealer>(context_, address_, identity_, keys_);
  dealer_->send({stream_.header(ever_accepted_ ? open_again : open_new)});
}

void Connection::close(int linger_milliseconds) {
  if (dealer_) dealer_->linger(linger_milliseconds);
  dealer_.reset();
}

}  // namespace gt::wire
