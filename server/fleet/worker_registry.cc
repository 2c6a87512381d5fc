#include "server/fleet/worker_registry.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "common/base/duration.h"
#include "common/base/plain_text.h"
#include "common/base/version.h"
#include "common/rpc/version.h"
#include "server/core/convert.h"
#include "server/fleet/node_events.h"
#include "server/fleet/node_records.h"
#include "server/gangs/node_checks.h"
#include "server/gangs/observation.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"
#include "server/store/node_holds.h"
#include "server/store/nodes.h"

namespace sft::server {
namespace {

constexpr int kMaxModels = 1024;  // models per node
constexpr int kMaxDownloads = 64;

// Seconds by which a worker's clock differs from this one's; nullopt if not reported.
std::optional<double> OffsetOf(int64_t its_us, WallTime now) {
  if (its_us == 0) return std::nullopt;
  return static_cast<double>(its_us - UnixMicros(now)) / 1e6;
}

// How long a measured clock offset is kept.
constexpr std::chrono::minutes kOffsetHolds{2};

using Models = google::protobuf::RepeatedPtrField<v1::Model>;
// Keeps the plausible ones; `doubt` is called with each of the others, and reports it.
template <typename Doubt>
Models BelievableModels(const Models& models, const Doubt& doubt) {
  Models kept;
  for (const v1::Model& model : models) {
    if (!doubt(kept.size() < kMaxModels
                   ? CheckModel(model)
                   : InvalidArgument(
                         fmt::format("models: {} are more than {}", models.size(), kMaxModels)))) {
      *kept.Add() = model;
    }
  }
  return kept;
}

}  // namespace

WorkerRegistry::WorkerRegistry(Options options, Store& store, Clock& clock, ChangeHub& hub,
                               std::function<void()> wake, GpuHistory* gpus, Generation* generation)
    : options_(options),
      store_(store),
      clock_(clock),
      hub_(hub),
      wake_(std::move(wake)),
      gpus_(gpus),
      generation_(generation),
      refusals_(clock),
      started_(clock.Mono()),
      last_beat_(started_) {}

// A tick is due each second; delays on a busy machine stay below this.
constexpr std::chrono::seconds kLongestTick{5};
// Counted from the refused worker's last attempt.
constexpr std::chrono::hours kRivalShown{1};

void WorkerRegistry::Beat() {
  const MutexLock lock(mutex_);
  const MonoTime now = clock_.Mono();
  if (now - last_beat_ > kLongestTick) {
    spdlog::warn("this server was stopped for {:.0f} s: the nodes' silence does not count it",
                 SecondsOf(now - last_beat_));
    asleep_ += now - last_beat_ - kLongestTick;
    // A node heard between the end of the suspension and now counts as heard just now.
    for (auto& [node, entry] : entries_) entry.last_heard = std::min(entry.last_heard, Awake());
  }
  last_beat_ = now;
}

MonoTime WorkerRegistry::Awake() const { return clock_.Mono() - asleep_; }

absl::Status WorkerRegistry::CheckRegister(const v1::Register& message) const {
  SFT_RETURN_IF_ERROR(rpc::CheckPeerProtocol(fmt::format("worker {}", Plain(message.node(), 80)),
                                             message.protocol(), message.version()));
  return CheckNode(message);
}

// Removes implausible values that the node does not depend on.
v1::Register WorkerRegistry::WithoutImplausible(const v1::Register& message) {
  v1::Register kept = message;
  const auto doubt = [&](const absl::Status& checked) {
    if (!checked.ok()) refusals_.Count(message.node(), checked);
    return !checked.ok();
  };
  *kept.mutable_models() = BelievableModels(message.models(), doubt);
  if (doubt(CheckFacts(message.facts()))) kept.clear_facts();
  if (doubt(CheckDisk(message.disk()))) kept.clear_disk();
  if (doubt(CheckTime(message.time_us()))) kept.clear_time_us();
  return kept;
}

absl::Status WorkerRegistry::StoreNode(const v1::Register& message) {
  NodeRecord node;
  node.name = message.node();
  node.hostname = message.hostname();
  node.address = message.address();
  node.incarnation = message.incarnation();
  node.data_dir_id = message.data_dir_id();
  node.version = message.version();
  node.protocol = message.protocol();
  node.simulated = message.simulated();
  node.has_shared_folder = message.has_shared_folder();
  node.cpus = message.cpus();
  node.memory_bytes = message.memory_bytes();
  node.last_seen_us = UnixMicros(clock_.Wall());
  node.slots = SlotRecords(message.slots(), node.name);
  const std::vector<ModelRecord> models = ModelRecords(message.models(), node.name);
  return store_.Write([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const v1::NodeFacts facts, TakeOver(db, message, node.last_seen_us));
    SFT_RETURN_IF_ERROR(NoteRegistered(db, node, node.last_seen_us));
    SFT_RETURN_IF_ERROR(store::PutNode(db, node));
    SFT_RETURN_IF_ERROR(
        store::PutFacts(db, node.name, facts.SerializeAsString(), node.last_seen_us));
    return store::PutModels(db, node.name, models);
  });
}

absl::Status WorkerRegistry::CheckSole(const v1::Register& message) {
  Claim holder;
  // A server that has just started counts every node as heard at its start, as Get does.
  MonoTime heard = started_;
  bool known = false;
  Nanos silence{0};
  {
    MutexLock lock(mutex_);
    const auto entry = entries_.find(message.node());
    known = entry != entries_.end();
    if (known) {
      holder = entry->second.claim;
      heard = entry->second.last_heard;
    }
    silence = Awake() - heard;
  }
  const absl::Status found = store_.Read([&](Database& db) -> absl::Status {
    SFT_RETURN_IF_ERROR(CheckNotReplaced(db, message));
    if (known) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(holder, StoredClaim(db, message.node()));
    return absl::OkStatus();
  });
  if (absl::IsNotFound(found)) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(found);
  if (silence > options_.suspect_after) return absl::OkStatus();
  return CheckTakeOver(message, holder, options_.suspect_after);
}

absl::Status WorkerRegistry::CheckStored(const v1::Register& message) {
  absl::StatusOr<Claim> stored;
  const absl::Status read = store_.Read([&](Database& db) -> absl::Status {
    stored = StoredClaim(db, message.node());
    return absl::OkStatus();
  });
  SFT_RETURN_IF_ERROR(read);
  if (absl::IsNotFound(stored.status())) {
    return Aborted(fmt::format("node {} was removed: register again", message.node()));
  }
  SFT_RETURN_IF_ERROR(stored.status());
  if (stored->incarnation == message.incarnation()) return absl::OkStatus();
  return Aborted(fmt::format("another worker came as {}: register again", message.node()));
}

absl::Status WorkerRegistry::Connect(const v1::Register& said, std::shared_ptr<WorkerLink> link) {
  if (const absl::Status checked = CheckRegister(said); !checked.ok()) {
    if (IsValidLabel(said.node())) refusals_.Count(said.node(), checked);
    return checked;
  }
  if (generation_ != nullptr) {
    SFT_RETURN_IF_ERROR(generation_->Meet(said.node(), said.generation(), said.generation_proof()));
  }
  const v1::Register message = WithoutImplausible(said);
  absl::Status accepted = CheckSole(message);
  if (accepted.ok()) accepted = StoreNode(message);
  if (accepted.ok()) accepted = TakeIn(message, std::move(link));
  if (absl::IsAlreadyExists(accepted) || WasReplaced(accepted)) TellOfRival(message);
  return accepted;
}

absl::Status WorkerRegistry::TakeIn(const v1::Register& message, std::shared_ptr<WorkerLink> link) {
  const WorkerLink* const own = link.get();
  std::shared_ptr<WorkerLink> replaced;
  {
    MutexLock lock(mutex_);
    Entry& entry = entries_[message.node()];
    replaced = std::exchange(entry.link, std::move(link));
    entry.claim = ClaimOf(message);
    entry.last_heard = Awake();
    entry.last_seen = clock_.Wall();
    entry.desired_sent = false;
    entry.observed.Clear();
    entry.disk = message.disk();
    entry.clock_offset = OffsetOf(message.time_us(), entry.last_seen);
    entry.clock_offset_at = entry.last_seen;
    entry.rank_problem = BoundedText(message.rank_problem());
    entry.rank_build = BoundedText(message.rank_build());
    entry.lease = LeaseOf(message, UnixMicros(entry.last_seen));
    entry.slots = SlotsKey(message.slots());
    entry.use.clear();
    entry.good_use = true;
    entry.models = ModelsKey(message.models());
    entry.unstored.Clear();
    entry.behind = false;
    entry.idle = false;
  }
  if (replaced != nullptr) replaced->Close(Aborted("the node has opened another stream"));
  // It was not connected until now, so it could be removed or replaced in between.
  if (const absl::Status is_own = CheckStored(message); !is_own.ok()) {
    Disconnect(message.node(), own);
    return is_own;
  }
  spdlog::info("node {} registered: {} slots, {} models, sft-worker {}", message.node(),
               message.slots_size(), message.models_size(), message.version());
  hub_.Bump(NodeName(message.node()));
  wake_();
  return absl::OkStatus();
}

void WorkerRegistry::TellOfRival(const v1::Register& refused) {
  const std::string text = RivalText(refused, clock_.Wall());
  std::shared_ptr<WorkerLink> link;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(refused.node());
    // Not heard since this server started: the other worker will try again.
    if (found == entries_.end()) return;
    Entry& entry = found->second;
    const bool is_news = entry.rival_life != refused.incarnation();
    entry.rival = text;
    entry.rival_life = refused.incarnation();
    entry.rival_seen = Awake();
    if (!is_news) return;
    link = entry.link;
  }
  spdlog::error("{}", text);
  if (link != nullptr) {
    v1::ServerMessage message;
    message.mutable_notice()->set_text(text);
    link->Send(message);
  }
  std::vector<std::string> jobs;
  const absl::Status noted = store_.Write([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(jobs, store::JobsOnNode(db, refused.node()));
    for (const std::string& job : jobs) {
      SFT_ASSIGN_OR_RETURN(const JobRecord record, store::GetJob(db, job));
      SFT_RETURN_IF_ERROR(store::AddEvent(db, job, {0, now_us(), "warning", text, record.attempt}));
    }
    return absl::OkStatus();
  });
  if (!noted.ok()) spdlog::warn("events of {}: {}", refused.node(), Message(noted));
  for (const std::string& job : jobs) hub_.Bump(job);
}

absl::Status WorkerRegistry::CheckIncarnation(const std::string& node,
                                              const std::string& incarnation) const {
  MutexLock lock(mutex_);
  const auto entry = entries_.find(node);
  if (entry != entries_.end() && entry->second.claim.incarnation == incarnation) {
    return absl::OkStatus();
  }
  return Unavailable(fmt::format("this worker is not registered as node {} now", node));
}

void WorkerRegistry::Disconnect(const std::string& node, const WorkerLink* link) {
  {
    MutexLock lock(mutex_);
    const auto entry = entries_.find(node);
    if (entry == entries_.end() || entry->second.link.get() != link) return;
    entry->second.link.reset();
  }
  spdlog::warn("the stream of node {} has ended", node);
  hub_.Bump(NodeName(node));
  wake_();
}

void WorkerRegistry::TakeOffset(Entry& entry, int64_t its_us) {
  const std::optional<double> now = OffsetOf(its_us, entry.last_seen);
  if (!now) return;
  const bool old = entry.last_seen - entry.clock_offset_at > kOffsetHolds;
  if (entry.clock_offset && *now < *entry.clock_offset && !old) return;
  entry.clock_offset = now;
  entry.clock_offset_at = entry.last_seen;
}

WorkerRegistry::News WorkerRegistry::TakeIn(Entry& entry, const v1::Observed& observed) {
  entry.last_heard = Awake();
  entry.last_seen = clock_.Wall();
  News news;
  const auto doubt = [&](const absl::Status& checked) {
    if (!checked.ok()) news.refused.push_back(checked);
    return !checked.ok();
  };
  const v1::NodeDisk disk = doubt(CheckDisk(observed.disk())) ? v1::NodeDisk() : observed.disk();
  // The disk's level decides whether jobs may be placed there.
  news.wakes = entry.disk.level() != disk.level() || entry.behind ||
               AttemptsKey(entry.observed.attempts()) != AttemptsKey(observed.attempts());
  entry.disk = disk;
  const std::string rank_problem = BoundedText(observed.rank_problem());
  const std::string rank_build = BoundedText(observed.rank_build());
  news.wakes = news.wakes || entry.rank_problem != rank_problem || entry.rank_build != rank_build;
  entry.rank_problem = rank_problem;
  entry.rank_build = rank_build;
  if (entry.lease.has_value() && entry.lease->leaving.empty() && !observed.leaving().empty()) {
    entry.lease->leaving = BoundedText(observed.leaving());
    news.wakes = true;
  }
  if (observed.time_us() > 0 && !doubt(CheckTime(observed.time_us()))) {
    TakeOffset(entry, observed.time_us());
  }
  news.clock_offset = entry.clock_offset;
  entry.observed = observed;
  entry.observed.clear_models();
  if (std::string use = BytesOf(observed.slots()); !use.empty() && use != entry.use) {
    entry.use = std::move(use);
    entry.good_use = !doubt(CheckSlots(observed.slots()));
    std::string slots = SlotsKey(observed.slots());
    if (entry.good_use && slots != entry.slots) {
      entry.slots = std::move(slots);
      *entry.unstored.mutable_slots() = observed.slots();
      news.wakes = true;
    }
  }
  if (!entry.good_use) entry.observed.clear_slots();
  if (observed.models_size() > 0) {
    std::string models = ModelsKey(observed.models());
    if (models != entry.models) {
      entry.models = std::move(models);
      *entry.unstored.mutable_models() = BelievableModels(observed.models(), doubt);
      news.wakes = true;
    }
  }
  news.unstored = entry.unstored;
  entry.idle = entry.idle && observed.attempts().empty();
  news.idle = entry.idle && !entry.behind && news.unstored.slots().empty() &&
              news.unstored.models().empty();
  return news;
}

absl::Status WorkerRegistry::Observe(const std::string& node, const WorkerLink* link,
                                     const v1::Observed& observed) {
  SFT_ASSIGN_OR_RETURN(const News news, Hear(node, link, observed));
  return news.idle ? absl::OkStatus() : Keep(node, link, observed, news);
}

absl::StatusOr<WorkerRegistry::News> WorkerRegistry::Hear(const std::string& node,
                                                          const WorkerLink* link,
                                                          const v1::Observed& observed) {
  News news;
  std::vector<GpuReading> readings;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(node);
    if (found == entries_.end() || found->second.link.get() != link) {
      return Aborted(fmt::format("node {} has another stream", node));
    }
    news = TakeIn(found->second, observed);
    if (gpus_ != nullptr) readings = GpuReadings(found->second.observed.slots());
  }
  if (gpus_ != nullptr) gpus_->Add(node, UnixMicros(clock_.Wall()), std::move(readings));
  for (const absl::Status& why : news.refused) refusals_.Count(node, why);
  hub_.Bump(NodeName(node));  // how its slots are used is never stored
  if (news.idle && news.wakes) wake_();
  return news;
}

absl::Status WorkerRegistry::Keep(const std::string& node, const WorkerLink* link,
                                  const v1::Observed& observed, const News& news) {
  ChangedJobs changed;
  std::vector<absl::Status> refused;
  bool idle = false;
  const int64_t now_us = UnixMicros(clock_.Wall());
  const absl::Status stored = store_.Write([&](Database& db) -> absl::Status {
    changed.clear();
    refused.clear();
    SFT_ASSIGN_OR_RETURN(const bool known, store::HasNode(db, node));
    if (!known) return Aborted(fmt::format("node {} was removed: register again", node));
    const v1::Observed& rest = news.unstored;
    if (rest.slots_size() > 0) {
      const std::vector<SlotRecord> slots = SlotRecords(rest.slots(), node);
      SFT_RETURN_IF_ERROR(NoteSlots(db, node, slots, now_us));
      SFT_RETURN_IF_ERROR(store::PutSlots(db, node, slots));
    }
    if (rest.models_size() > 0) {
      SFT_RETURN_IF_ERROR(store::PutModels(db, node, ModelRecords(rest.models(), node)));
    }
    const ReportTime time{now_us, news.clock_offset};
    SFT_RETURN_IF_ERROR(TakeObservation(db, node, observed, options_.pace, time, changed, refused));
    if (!observed.attempts().empty()) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(const auto held, store::HeldMembers(db, node));
    idle = held.empty();
    return absl::OkStatus();
  });
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(node);
    if (found != entries_.end() && found->second.link.get() == link) {
      found->second.behind = !stored.ok();
      found->second.idle = stored.ok() && idle && !found->second.wants_attempts;
      if (stored.ok()) found->second.unstored.Clear();
    }
  }
  for (const absl::Status& why : refused) refusals_.Count(node, why);
  for (const std::string& job : changed) hub_.Bump(job);
  if (news.wakes) wake_();
  return stored;
}

void WorkerRegistry::Close(const std::string& node, const absl::Status& why) {
  std::shared_ptr<WorkerLink> link;
  {
    MutexLock lock(mutex_);
    const auto entry = entries_.find(node);
    if (entry != entries_.end()) link = entry->second.link;
  }
  if (link != nullptr) link->Close(why);
}

std::vector<std::pair<std::string, v1::ModelDownload>> WorkerRegistry::Downloads() const {
  std::vector<std::pair<std::string, v1::ModelDownload>> all;
  const MutexLock lock(mutex_);
  for (const auto& [node, entry] : entries_) {
    if (entry.link == nullptr) continue;
    for (int i = 0; i < std::min(entry.observed.downloads_size(), kMaxDownloads); ++i) {
      v1::ModelDownload download = entry.observed.downloads(i);
      download.set_id(BoundedText(download.id()));
      download.set_commit(BoundedText(download.commit()));
      download.set_problem(BoundedText(download.problem()));
      download.set_text(BoundedText(download.text()));
      all.emplace_back(node, std::move(download));
    }
  }
  return all;
}

void WorkerRegistry::Dismiss(const std::string& node) {
  std::shared_ptr<WorkerLink> link;
  {
    MutexLock lock(mutex_);
    const auto entry = entries_.find(node);
    if (entry == entries_.end()) return;
    link = std::move(entry->second.link);
    entries_.erase(entry);
  }
  spdlog::info("node {} has left the fleet", node);
  hub_.Bump(NodeName(node));
  if (link == nullptr) return;
  v1::ServerMessage message;
  message.mutable_dismissed();
  link->Send(message);
  link->Close(Aborted("the node has left the fleet"));
}

bool WorkerRegistry::IsConnected(const std::string& node) const {
  MutexLock lock(mutex_);
  const auto entry = entries_.find(node);
  return entry != entries_.end() && entry->second.link != nullptr;
}

bool WorkerRegistry::Send(const std::string& node, const v1::ServerMessage& message) {
  std::shared_ptr<WorkerLink> link;
  {
    MutexLock lock(mutex_);
    const auto entry = entries_.find(node);
    if (entry != entries_.end()) link = entry->second.link;
  }
  if (link == nullptr) return false;
  link->Send(message);
  return true;
}

void WorkerRegistry::SendDesired(const std::string& node, const v1::Desired& desired) {
  std::shared_ptr<WorkerLink> link;
  v1::ServerMessage message;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(node);
    if (found == entries_.end() || found->second.link == nullptr) return;
    Entry& entry = found->second;
    entry.wants_attempts = desired.attempts_size() > 0;
    entry.idle = entry.idle && !entry.wants_attempts;
    std::string bytes = desired.SerializeAsString();
    if (entry.desired_sent && bytes == entry.last_desired) return;
    entry.desired_sent = true;
    entry.last_desired = std::move(bytes);
    link = entry.link;
    *message.mutable_desired() = desired;
  }
  link->Send(message);
}

WorkerRegistry::Live WorkerRegistry::Get(const std::string& node) const {
  MutexLock lock(mutex_);
  Live live;
  const auto found = entries_.find(node);
  if (found == entries_.end()) {
    // Counted from the start of this server: time in which it was down does not count.
    live.silent_for = Awake() - started_;
    live.silent = live.silent_for > options_.suspect_after;
    return live;
  }
  const Entry& entry = found->second;
  live.connected = entry.link != nullptr;
  live.silent_for = std::max(Nanos(0), Awake() - entry.last_heard);
  live.silent = live.silent_for > options_.suspect_after;
  live.last_seen = entry.last_seen;
  live.observed = entry.observed;
  live.disk = entry.disk;
  live.clock_offset = entry.clock_offset;
  if (!entry.rival.empty() && Awake() - entry.rival_seen < kRivalShown) live.rival = entry.rival;
  live.rank_problem = entry.rank_problem;
  live.rank_build = entry.rank_build;
  live.lease = entry.lease;
  if (live.lease.has_value()) live.leaving = live.lease->WhyLeaving(now_us());
  for (const v1::Slot& slot : entry.observed.slots()) {
    live.use[slot.index()] = {slot.memory_used_bytes(), slot.utilization_percent()};
  }
  return live;
}

v1::Welcome WorkerRegistry::MakeWelcome(const absl::Status& accepted) const {
  v1::Welcome welcome;
  welcome.set_server_version(kVersion);
  welcome.set_protocol(kProtocol);
  welcome.set_heartbeat_seconds(static_cast<int32_t>(
      std::chrono::duration_cast<std::chrono::seconds>(options_.heartbeat).count()));
  welcome.set_answers_observed(true);
  welcome.set_time_us(now_us());
  if (!accepted.ok()) welcome.set_refused(std::string(Message(accepted)));
  welcome.set_replaced(WasReplaced(accepted));
  if (generation_ != nullptr) {
    welcome.set_generation(generation_->number());
    welcome.set_generation_proof(generation_->proof());
  }
  return welcome;
}

uint64_t WorkerRegistry::SilenceKey() const {
  MutexLock lock(mutex_);
  const MonoTime now = Awake();
  uint64_t key = now - started_ > options_.suspect_after ? 1 : 0;
  for (const auto& [node, entry] : entries_) {
    const bool silent = now - entry.last_heard > options_.suspect_after;
    key = key * 31 + (silent ? std::hash<std::string>()(node) : 1);
  }
  return key;
}

int WorkerRegistry::connected() const {
  MutexLock lock(mutex_);
  int count = 0;
  for (const auto& [node, entry] : entries_) count += entry.link != nullptr ? 1 : 0;
  return count;
}

}  // namespace sft::server
