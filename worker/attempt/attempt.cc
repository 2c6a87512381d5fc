#include "worker/attempt/attempt.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/spec/grader.h"
#include "worker/shipping/event_file.h"

namespace sft::worker {
namespace {

CheckpointShipper::Identity ShipperOf(const AttemptRecord& record, const AttemptContext& context) {
  return {record.uid, record.epoch, record.dispatch.job_id(),
          record.dispatch.slots_size() == record.dispatch.world_size(), context.rank_user};
}

}  // namespace

Attempt::Attempt(AttemptRecord record, const AttemptServices& services)
    : resume_step_(record.dispatch.resume().step()),
      context_(record, services),
      shared_(record, context_),
      checkpoints_(ShipperOf(record, context_), services.setup, services.server, services.clock,
                   record.checkpoint_step, CheckpointHooks()),
      control_(context_, shared_, checkpoints_),
      io_(context_, shared_, checkpoints_) {
  if (record.launched && !record.done) FindCheckpoints(record.dispatch.first_rank());
}

CheckpointShipper::Hooks Attempt::CheckpointHooks() {
  return {[this](int64_t step) { OnCheckpointRegistered(step); },
          [this] {
            const MonoTime now = context_.services.clock.Mono();
            return shared_.With([&](const AttemptData& data) { return IsAway(data.heard, now); });
          },
          context_.services.on_change};
}

bool Attempt::AsksJudges() const {
  return context_.job.ok() && spec::HasJudges(context_.job->evaluate.grader);
}

void Attempt::Direct(const v1::DesiredAttempt& desired) {
  const bool abandoned = shared_.With([&](AttemptData& data) {
    data.server_spoke = true;
    data.wish.Take(desired);
    return data.wish.abandoned;
  });
  checkpoints_.Collect(desired.collect_checkpoint());
  if (abandoned || (desired.cancelled() && !desired.checkpoint_first())) checkpoints_.Drop();
}

void Attempt::Abandon(const std::string& reason, bool lasts) {
  shared_.With([&](AttemptData& data) { data.wish.Abandon(reason, lasts); });
  checkpoints_.Drop();
}

v1::AttemptStatus Attempt::Status() const {
  v1::AttemptStatus status;
  status.set_attempt_uid(context_.uid);
  status.set_epoch(context_.epoch);
  shared_.With([&](const AttemptData& data) {
    status.set_state(data.state);
    status.set_reason(data.reason);
    status.set_stuck(data.stuck);
    status.set_retrying(data.retrying.empty() ? checkpoints_.retrying() : data.retrying);
    if (data.state >= v1::AttemptStatus::READY) {
      status.set_rendezvous(data.prepared.port.endpoint());
    }
    if (data.state >= v1::AttemptStatus::FINISHING) {
      *status.mutable_verdict() = data.record.verdict;
      status.set_ended_us(data.record.ended_us);
    }
    *status.mutable_progress() = data.progress;
    if (checkpoints_.whole()) return;
    status.set_checkpoint_newest(checkpoints_.newest());
    status.set_checkpoint_settled(data.record.checkpoint_step);
  });
  return status;
}

std::vector<std::string> Attempt::Blobs() const {
  return shared_.With([](const AttemptData& data) {
    std::vector<std::string> hashes;
    for (const v1::JobFileRef& file : data.record.dispatch.files()) {
      if (!file.sha256().empty()) hashes.push_back(file.sha256());
    }
    return hashes;
  });
}

int64_t Attempt::settled_step() const {
  return shared_.With([this](const AttemptData& data) {
    return std::max(resume_step_, data.record.checkpoint_step);
  });
}

bool Attempt::Forgettable() const {
  return shared_.With(
      [](const AttemptData& data) { return MayBeForgotten(data.state, data.wish); });
}

void Attempt::Interrupt() {
  checkpoints_.Interrupt();
  shared_.With([](AttemptData& data) { data.wish.interrupted = true; });
}

void Attempt::FindCheckpoints(int first_rank) {
  const std::string path = fmt::format("{}/rank-{}.events", context_.dir, first_rank);
  const RankRights rights(context_.rank_user);
  const absl::Status read = ReadEventFile(path, [this](const channel::Event& event) {
    const auto* checkpoint = std::get_if<channel::CheckpointEvent>(&event.body);
    if (checkpoint != nullptr) checkpoints_.Add(*checkpoint);
  });
  if (!read.ok() && !absl::IsNotFound(read)) spdlog::warn("{}", Message(read));
}

void Attempt::OnCheckpointRegistered(int64_t step) {
  shared_.With([&](AttemptData& data) {
    data.record.checkpoint_step = std::max(data.record.checkpoint_step, step);
  });
  (void)shared_.Save();
  // The server waits for it before it names the next.
  if (!checkpoints_.whole()) context_.services.on_change();
}

}  // namespace sft::worker
