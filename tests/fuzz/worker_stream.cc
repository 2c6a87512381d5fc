// What a worker says on its stream: messages, each after four bytes with its length, to a server
// with a job that waits for a node. Whatever is said, the server goes on, and its rows stay legal.

#include <cstring>

#include "common/base/version.h"
#include "server/fleet/worker_registry.h"
#include "server/scheduling/reconciler.h"
#include "server/store/jobs.h"
#include "tests/fuzz/input.h"

namespace {

using namespace sft;  // NOLINT: one program
using server::Database;

class Link final : public server::WorkerLink {
 public:
  void Send(const v1::ServerMessage& message) override { (void)message.ByteSizeLong(); }
  void Close(const absl::Status&) override {}
};

void AddJob(server::Store& store) {
  const absl::Status added = store.Write([](Database& db) {
    server::JobRecord job;
    job.id = "job-1";
    job.project = job.owner = "p";
    job.gpu_type = "H100";
    job.variant = "H100-1x";
    job.model = "tiny";
    job.spec.emplace();
    return server::store::InsertJob(db, job, {});
  });
  fuzz::Require(added.ok());
}

void CheckRows(server::Store& store) {
  const absl::Status sound = store.Read([](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(auto check, db.Prepare("SELECT count(*) FROM pragma_foreign_key_check()"));
    SFT_ASSIGN_OR_RETURN(const bool row, check.Step());
    fuzz::Require(row && check.Int(0) == 0);
    return absl::OkStatus();
  });
  fuzz::Require(sound.ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FakeClock clock;
  const auto store = server::Store::Open({.path = ":memory:", .own_thread = false}).value();
  AddJob(*store);
  server::ChangeHub hub;
  server::WorkerRegistry registry({}, *store, clock, hub, [] {});
  server::Reconciler reconciler(*store, clock, registry, hub, {});
  std::string node;
  const auto link = std::make_shared<Link>();
  for (int count = 0; size >= 4 && count < 32; ++count) {
    uint32_t length = 0;
    std::memcpy(&length, data, sizeof(length));
    data += 4, size -= 4;
    length = static_cast<uint32_t>(std::min<size_t>(length, size));
    v1::WorkerMessage message;
    const bool parsed = message.ParseFromArray(data, static_cast<int>(length));
    data += length, size -= length;
    if (!parsed) break;  // gRPC ends the stream
    if (message.has_register_() && node.empty()) {
      if (!registry.Connect(message.register_(), link).ok()) break;
      node = message.register_().node();
    } else if (message.has_observed() && !node.empty()) {
      (void)registry.Observe(node, link.get(), message.observed());
    }
    clock.Advance(std::chrono::seconds(5));
    registry.Beat();
    (void)reconciler.Tick();
  }
  if (!node.empty()) registry.Disconnect(node, link.get());
  (void)reconciler.Tick();
  CheckRows(*store);
  return 0;
}
