#include "bulk.hpp"

#include <algorithm>
#include <iterator>

#include "messages.hpp"

namespace gt::wire {
namespace {

constexpr std::uint64_t kind_data = 0, kind_grant = 1;
constexpr std::size_t most_early_grants = 1024;

}  // namespace

void BulkStreams::say(const Bytes& worker, std::uint64_t kind, const StreamKey& key, std::uint64_t number, Bytes payload) {
  Writer header;
  header.array(6).add(kind);
  for (const std::uint64_t part : key) header.add(part);
  header.add(number);
  send_({worker, header.take(), std::move(payload)});
}

void BulkStreams::begin_put(const StreamKey& key, const Bytes& worker, Bytes values, std::size_t item) {
  outgoing_[key] = {worker, std::move(values), item, 0};
  const auto early = early_.find(key);
  if (early == early_.end()) return;
  const Grant grant = early->second;
  early_.erase(early);
  granted(key, grant.worker, grant.end);
}

void BulkStreams::begin_fetch(const StreamKey& key, const Bytes& worker, std::size_t nbytes) {
  const std::size_t first = std::min(nbytes, max_in_flight_bytes);
  incoming_[key] = {worker, {}, nbytes, first};
  say(worker, kind_grant, key, first, {});
}

void BulkStreams::handle(const Frames& frames) {
  if (frames.size() != 3) throw Error("ProtocolError", "a bulk message has three frames");
  const Reader header(frames[1]);
  const std::uint64_t kind = header.number(0), number = header.number(5);
  const StreamKey key{header.number(1), header.number(2), header.number(3), header.number(4)};
  if (kind == kind_grant && key[0] == put_stream) granted(key, frames[0], number);
  if (kind == kind_data && key[0] == fetch_stream) data(key, frames[0], number, frames[2]);
}

void BulkStreams::granted(const StreamKey& key, const Bytes& worker, std::uint64_t end) {
  const auto found = outgoing_.find(key);
  if (found == outgoing_.end()) {
    if (early_.size() < most_early_grants) early_[key] = {worker, end};
    return;
  }
  Outgoing& stream = found->second;
  if (worker != stream.worker) return;
  std::size_t upto = std::min<std::uint64_t>({end, stream.values.size(), stream.at + max_in_flight_bytes});
  upto -= upto % stream.item;
  while (stream.at < upto) {
    const std::size_t size = std::min(upto - stream.at, max_bulk_bytes);
    say(worker, kind_data, key, stream.at, stream.values.substr(stream.at, size));
    stream.at += size;
  }
  if (stream.at == stream.values.size()) outgoing_.erase(found);
}

void BulkStreams::data(const StreamKey& key, const Bytes& worker, std::uint64_t offset, const Bytes& payload) {
  const auto found = incoming_.find(key);
  if (found == incoming_.end() || found->second.worker != worker) return;
  Incoming& stream = found->second;
  if (offset != stream.values.size() || payload.size() > stream.granted - stream.values.size()) {
    throw Error("ProtocolError", "bulk data that was not asked for");
  }
  stream.values += payload;
  if (stream.values.size() == stream.nbytes) {
    const Bytes values = std::move(stream.values);
    incoming_.erase(found);
    arrived_(key, values);
  } else if (stream.granted < stream.nbytes && stream.granted - stream.values.size() <= max_in_flight_bytes / 2) {
    stream.granted = std::min(stream.nbytes, stream.values.size() + max_in_flight_bytes);
    say(worker, kind_grant, key, stream.granted, {});
  }
}

void BulkStreams::break_off(std::uint64_t lost) {
  outgoing_.clear();
  incoming_.clear();
  for (auto each = early_.begin(); each != early_.end();) {
    each = each->first[3] == lost ? early_.erase(each) : std::next(each);
  }
}

}  // namespace gt::wire
