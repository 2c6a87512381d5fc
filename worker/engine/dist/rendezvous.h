#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

// Rendezvous of the ranks of one attempt: a key-value store served by rank 0.

namespace sft::engine {

// Address of the store and identity of the rank that joins.
struct RendezvousOptions {
  // Address of rank 0's node and the port rank 0 listens on, on that address alone. Rank 0 may give
  // port 0 and pass on the port it got in `on_listening`.
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  int rank = 0;
  int world = 1;
  // Keys are prefixed with it: what an older attempt left in a store is never read.
  std::string prefix;
  // Of this program. Ranks of different builds do not train together; empty: any will do.
  std::string build;
  std::string node;  // name of this rank's node, for messages
  // Bound of the meeting, and of every collective after it.
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  // Network interface ("eth0") or address that this rank's data connections use; empty: the address
  // from which `host` is reached.
  std::string bind;
  // Called on rank 0 with its port, before it waits for the others.
  std::function<void(uint16_t)> on_listening;
};

// Owns the store's connection and, on rank 0, its server: must outlive the communicators made from
// it. A world of one opens nothing.
class Rendezvous {
 public:
  // Blocks until all ranks have joined. Throws InfrastructureError: port taken, rank 0 not reached,
  // fewer ranks than `world` within the time-out, ranks of different builds ("rank_versions").
  explicit Rendezvous(RendezvousOptions options);

  const RendezvousOptions& options() const { return options_; }
  int rank() const { return options_.rank; }
  int world() const { return options_.world; }
  uint16_t port() const { return options_.port; }
  // Null in a world of one.
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  // The local address for data connections: options().bind, or what it defaults to.
  const std::string& bind() const { return options_.bind; }

 private:
  RendezvousOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace sft::engine
