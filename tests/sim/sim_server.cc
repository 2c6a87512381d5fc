#include "tests/sim/sim_server.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

namespace sft::sim {
namespace {

constexpr std::chrono::seconds kTick{1};
constexpr std::chrono::seconds kSweep{60};
constexpr std::chrono::milliseconds kWakeDelay{1};
// Ranks have ended so long after their limit: the shim looks each second, the grace is 5 s.
constexpr std::chrono::seconds kMargin{20};
// The database lies on the simulated disk: the name alone.
constexpr const char* kDatabase = "server.db";

}  // namespace

SimServer::Process::Process(const std::string& dir, Clock& clock, std::function<void()> wake)
    : store(server::Store::Open({.path = kDatabase, .own_thread = false}).value()),
      blobs(server::BlobStore::Open(dir + "/blobs").value()),
      checkpoint_blobs(server::BlobStore::Open(dir + "/checkpoints").value()),
      logs(dir + "/logs"),
      metrics(dir + "/metrics"),
      tensorboard(dir + "/tensorboard"),
      registry({}, *store, clock, hub, wake),
      relay(registry),
      jobs(*store, clock, hub, wake),
      ingest(*store, clock, logs, metrics, tensorboard, hub),
      artifacts(*store, clock, *blobs, *checkpoint_blobs, relay, hub),
      checkpoints(*store, clock, *checkpoint_blobs, hub, wake),
      reconciler(*store, clock, registry, hub, {.unreachable_margin = kMargin}) {}

SimServer::SimServer(EventQueue& events, Chance& chance, Disk& disk, std::string dir)
    : events_(events), chance_(chance), disk_(disk), dir_(std::move(dir)), clock_(events) {}

SimServer::~SimServer() { disk_.Freeze(); }

void SimServer::Boot() {
  if (process_ != nullptr) return;
  ++life_;
  tick_soon_ = false;
  process_ = std::make_unique<Process>(dir_, clock_, [this] {
    if (tick_soon_) return;
    tick_soon_ = true;
    TickAt(events_.now() + kWakeDelay);
  });
  if (std::exchange(power_lost_, false)) CutLogs();
  TickAt(events_.now() + kTick);
}

void SimServer::TickAt(Nanos time) {
  events_.At(time, [this, life = life_] {
    if (life != life_ || process_ == nullptr) return;
    const bool woken = std::exchange(tick_soon_, false);
    if (!paused_) {
      process_->reconciler.Beat();
      (void)process_->reconciler.Tick();  // fails while the disk is full
      if (events_.now() - swept_ >= kSweep) {
        swept_ = events_.now();
        (void)process_->checkpoints.Sweep();
      }
    }
    if (!woken) TickAt(events_.now() + kTick);
  });
}

void SimServer::Kill() {
  if (process_ == nullptr) return;
  disk_.Freeze();
  process_.reset();
  disk_.Thaw();
}

void SimServer::LosePower(bool keep_none) {
  if (process_ == nullptr) return;
  disk_.Freeze();
  process_.reset();
  disk_.LosePower(chance_, keep_none);
  power_lost_ = true;
}

std::set<std::string> SimServer::EndedLogs() {
  std::set<std::string> ended;
  const absl::Status read = process_->store->Read([&](server::Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(
        server::Statement rows,
        db.Prepare("SELECT attempt_uid, rank, node FROM rank_streams WHERE log_ended = 1"));
    auto more = rows.Step();
    for (; more.ok() && *more; more = rows.Step()) {
      const auto rank = static_cast<int>(rows.Int(1));
      ended.insert(rank < 0 ? server::LogStore::PrepareStream(rows.Text(0), rows.Text(2))
                            : server::LogStore::RankStream(rows.Text(0), rank));
    }
    return more.status();
  });
  if (!read.ok()) std::abort();
  return ended;
}

// Bytes of a log are synced at its end; until then the machine may lose any of its last ones.
void SimServer::CutLogs() {
  namespace fs = std::filesystem;
  const std::set<std::string> ended = EndedLogs();
  const fs::path root = dir_ + "/logs";
  if (!fs::exists(root)) return;
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& path : files) {
    if (ended.contains(fs::relative(path.parent_path(), root).string())) continue;
    if (chance_.OneIn(2)) continue;
    const auto size = static_cast<int>(fs::file_size(path));
    fs::resize_file(path, static_cast<uintmax_t>(chance_.Below(size + 1)));
  }
}

}  // namespace sft::sim
