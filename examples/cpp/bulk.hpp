// Streams of values that are too large for a message (docs/protocol.md, "Bulk data"). No socket is in here.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "wire.hpp"

namespace gt::wire {

constexpr std::uint64_t put_stream = 0, fetch_stream = 1;

// A stream: direction, client, item (the tensor of a put, the request of a fetch), worker.
using StreamKey = std::array<std::uint64_t, 4>;

class BulkStreams {
 public:
  // `send` is given the frames of each bulk message; `arrived` a fetched stream and its values.
  BulkStreams(std::function<void(Frames)> send, std::function<void(const StreamKey&, const Bytes&)> arrived)
      : send_(std::move(send)), arrived_(std::move(arrived)) {}

  void begin_put(const StreamKey& key, const Bytes& worker, Bytes values, std::size_t item);
  void begin_fetch(const StreamKey& key, const Bytes& worker, std::size_t nbytes);
  void handle(const Frames& frames);   // a bulk message that came
  void break_off(std::uint64_t lost);  // a worker is gone: streams that have not ended never will

 private:
  struct Outgoing { Bytes worker, values; std::size_t item, at; };
  struct Incoming { Bytes worker, values; std::size_t nbytes, granted; };
  struct Grant { Bytes worker; std::uint64_t end; };

  void say(const Bytes& worker, std::uint64_t kind, const StreamKey& key, std::uint64_t number, Bytes payload);
  void granted(const StreamKey& key, const Bytes& worker, std::uint64_t end);
  void data(const StreamKey& key, const Bytes& worker, std::uint64_t offset, const Bytes& payload);

  std::function<void(Frames)> send_;
  std::function<void(const StreamKey&, const Bytes&)> arrived_;
  std::map<StreamKey, Outgoing> outgoing_;
  std::map<StreamKey, Incoming> incoming_;
  std::map<StreamKey, Grant> early_;  // grants that came before the `Cut` which says what they are for
};

}  // namespace gt::wire
