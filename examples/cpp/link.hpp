// A session's thread, which owns its sockets: it says what the program has to say, and keeps what the service answers.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "bulk.hpp"
#include "gt.hpp"
#include "messages.hpp"
#include "wire.hpp"

namespace gt::wire {

class Link {
 public:
  Link(const std::string& address, const Options& options);  // waits until the service has welcomed the session
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // All of them throw what has ended the session, if something has.
  void say(Frames frames);          // does not wait
  void say_counted(Frames frames);  // a run or put: waits until the service grants another one
  void put(std::int64_t tensor, const Spec& spec, const std::vector<std::string>& path, Bytes values);
  Bytes fetch(std::int64_t tensor);
  void check();  // also throws what the service has said of something that has no answer

  void close();
  int workers();
  std::size_t reconnects();

 private:
  struct Fetch {
    Spec spec;
    std::int64_t parts = -1;  // that are still to come; −1: none has come
    Bytes values;
    std::optional<Error> error;
    std::map<std::uint64_t, Box> boxes;  // of parts that come as bulk data, by worker
  };
  struct Put {
    Spec spec;
    Bytes values;
  };
  using Lock = std::unique_lock<std::mutex>;

  // on the thread
  void loop();
  void round();
  bool wait_for_sockets();
  void hear_control(const Frames& frames);
  void look();
  void say_goodbye();
  void end(const Error& error);
  void on_welcome(const Reader& message);
  void on_cut(const Reader& message);
  void on_value(const Reader& message, const Frames& frames);
  void on_failed(const Reader& message);
  void on_peer_lost(const Reader& message);
  void on_bulk_value(const StreamKey& key, const Bytes& values);
  void part_came(Fetch& fetch, const Box& box, const Bytes& values);
  void tell(const std::string& text);
  Bytes hello() const;

  // on the program's
  void wake();
  template <class Ready>
  void wait(Lock& lock, Ready ready);

  const std::string address_;
  const Options options_;
  std::optional<Keys> keys_;
  const std::string bulk_identity_ = new_identity();
  void* context_;
  int wake_fd_;
  std::unique_ptr<Connection> control_, bulk_;
  BulkStreams streams_;
  ActiveClock clock_;
  double bulk_unknown_since_ = -1;

  std::mutex mutex_;  // guards all below, and what the thread does between two waits
  std::condition_variable changed_;
  std::deque<Frames> outgoing_;
  std::map<std::uint64_t, Fetch> fetches_;
  std::map<std::int64_t, Put> puts_;  // bulk ones, until a `Cut` says where they go
  std::optional<Error> ended_, pending_;
  bool welcomed_ = false, queued_ = false, closing_ = false;
  std::uint64_t number_ = 0, counted_ = 0, done_ = 0, credits_ = 0, last_request_ = 0;
  int workers_ = 0;
  std::thread thread_;
};

}  // namespace gt::wire
