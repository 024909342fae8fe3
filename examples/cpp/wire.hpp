// Connections to a service: numbered messages that outlive the sockets which carry them (docs/protocol.md, "Sessions").
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gt.hpp"

namespace gt::wire {

using Frames = std::vector<Bytes>;

// From the tables of docs/protocol.md.
constexpr int version = 19;
constexpr double silence_seconds = 5;
constexpr double default_lease_seconds = 300;
constexpr double first_retry_seconds = 0.05;
constexpr double max_retry_seconds = 2;
constexpr double heartbeat_seconds = 1;
constexpr std::size_t max_owed_messages = 256;
constexpr std::size_t max_owed_bytes = std::size_t{1} << 20;
constexpr std::size_t max_inline_bytes = std::size_t{64} << 10;
constexpr std::size_t max_bulk_bytes = std::size_t{1} << 20;
constexpr std::size_t max_in_flight_bytes = std::size_t{16} << 20;

constexpr std::uint64_t unnumbered = 0;
constexpr std::uint64_t open_new = ~std::uint64_t{0};
constexpr std::uint64_t open_again = open_new - 1;
constexpr std::uint64_t accepted = open_new - 2;
constexpr std::uint64_t unknown = open_new - 3;
constexpr std::size_t header_bytes = 16;

std::string new_identity();  // random, for a socket

// The keys of a file that `gt keys new` made.
struct Keys {
  std::string public_key, secret_key, service_key;
};
Keys read_keys(const std::string& path);

// Seconds that go on only while somebody looks: a process that was stopped does not count that time against its service.
class ActiveClock {
 public:
  double look();

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  double now_ = 0;
};

// The numbers of one end of a session.
class ReliableStream {
 public:
  const Frames& number(Frames frames);                // numbers a message; it is kept until it is acknowledged
  Bytes header(std::uint64_t sequence = unnumbered);  // a first frame that only acknowledges
  bool accept(std::uint64_t sequence, std::uint64_t acknowledged, std::size_t nbytes);  // whether it is the next one
  void acknowledge(std::uint64_t number);
  bool owes_much() const { return owed_messages_ >= max_owed_messages || owed_bytes_ >= max_owed_bytes; }
  const std::deque<Frames>& kept() const { return kept_; }
  std::uint64_t sent() const { return sent_; }
  std::uint64_t heard() const { return heard_; }
  std::uint64_t acknowledged() const { return acknowledged_; }

 private:
  std::uint64_t sent_ = 0, heard_ = 0, acknowledged_ = 0;
  std::size_t owed_messages_ = 0, owed_bytes_ = 0;
  std::deque<Frames> kept_;
};

// A DEALER of libzmq on one connection, which is never made again by itself, and what watches it.
class Dealer {
 public:
  Dealer(void* context, const std::string& address, const std::string& identity, const std::optional<Keys>& keys);
  ~Dealer();
  Dealer(const Dealer&) = delete;
  Dealer& operator=(const Dealer&) = delete;

  void* socket() const { return socket_; }
  void* monitor() const { return monitor_; }
  void send(const Frames& frames);           // never waits; if it fails the monitor tells
  std::optional<Frames> receive();           // the frames of the next message, if there is one
  bool broken();                             // whether the connection has ended, or could not be made
  bool refused() const { return refused_; }  // whether its key was not accepted
  void linger(int milliseconds);             // how long what was sent may take to leave when it is closed

 private:
  void* socket_;
  void* monitor_ = nullptr;
  bool broken_ = false, refused_ = false;
};

// One session of a socket, on one connection after another. One thread uses it.
class Connection {
 public:
  Connection(void* context, std::string address, std::string identity, std::optional<Keys> keys, double lease);

  void send(Frames frames);         // arrives once and in order, as long as the session lives
  std::optional<Frames> receive();  // the frames of the next message, without its numbers
  void look(double now);            // says that this end is there, and replaces a connection that broke; several times a second

  bool is_unknown() const { return is_unknown_; }
  const std::string& failure() const { return failure_; }  // why there will be no other connection
  bool refused() const { return refused_ || (dealer_ && dealer_->refused()); }
  std::size_t reconnects() const { return reconnects_; }
  void set_lease(double seconds) { lease_ = seconds; }
  void close(int linger_milliseconds);
  void* socket() const { return dealer_ ? dealer_->socket() : nullptr; }
  void* monitor() const { return dealer_ ? dealer_->monitor() : nullptr; }

 private:
  void reopen(double now);
  void on_accepted(std::uint64_t acknowledged);

  void* context_;
  std::string address_, identity_;
  std::optional<Keys> keys_;
  double lease_;
  ReliableStream stream_;
  std::unique_ptr<Dealer> dealer_;
  bool ever_accepted_ = false;  // the service has answered at some time
  bool answered_ = false;       // it has answered on this connection
  bool resuming_ = false;       // what is sent waits until it has answered
  bool is_unknown_ = false, spoken_ = false, looked_ = false, refused_ = false;
  double heard_at_ = 0, said_at_ = 0, attempt_ = 0, progress_at_ = 0, retry_ = first_retry_seconds;
  std::uint64_t progress_ = 0;
  std::size_t reconnects_ = 0;
  std::string failure_;
};

}  // namespace gt::wire
