#include "worker/attempt/attempt_io.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/io/file.h"
#include "common/rpc/progress.h"
#include "worker/attempt/launch_plan.h"
#include "worker/attempt/verdict.h"
#include "worker/shipping/artifact.h"
#include "worker/transfer/checkpoint_folder.h"

namespace sft::worker {
namespace {

// Failures in a row until the job's history says it.
constexpr int kFailuresToldOf = 5;

std::vector<Shipper::Source> Sources(const v1::Dispatch& dispatch) {
  std::vector<Shipper::Source> sources{{-1, "prepare"}, {kNodeStream, "node", /*log=*/false}};
  for (int i = 0; i < dispatch.slots_size(); ++i) {
    const int rank = dispatch.first_rank() + i;
    sources.push_back({rank, fmt::format("rank-{}", rank)});
  }
  return sources;
}

}  // namespace

AttemptIo::AttemptIo(const AttemptContext& context, SharedRecord& shared,
                     CheckpointShipper& checkpoints)
    : context_(context),
      shared_(shared),
      checkpoints_(checkpoints),
      shipper_({context.uid, context.epoch, context.node(), context.dir, context.rank_user},
               Sources(shared.record().dispatch), context.services.server,
               [this](int rank, const channel::Event& event) { OnEvent(rank, event); }) {}

Nanos AttemptIo::Work() {
  // It is there again: no need to wait longer.
  if (shared_.With([](AttemptData& data) { return std::exchange(data.server_spoke, false); })) {
    for (Retries* each : {&memory_.staging, &memory_.live, &memory_.shipping, &memory_.delivery}) {
      each->Hurry();
    }
  }
  memory_.BeginPiece();
  for (;;) {
    const IoView view = View();
    const IoStep step = DecideIo(view, memory_);
    if (step.what == IoDo::kWait) return *step.then;
    const auto failures = [&] {
      return memory_.staging.failures() + memory_.live.failures() + memory_.shipping.failures() +
             memory_.delivery.failures();
    };
    const int before = failures();
    const absl::Status result = Do(step);
    IoView after = view;
    after.now = context_.services.clock.Mono();
    Note(step, result, after, memory_);
    if (step.what == IoDo::kTryAgain) TellFailure(step.task);
    if (failures() < before) ForgetFailure();
    if (step.what == IoDo::kFinish) shared_.Enter(v1::AttemptStatus::DONE);
    if (step.then) return *step.then;
  }
}

IoView AttemptIo::View() const {
  IoView view;
  view.now = context_.services.clock.Mono();
  shared_.With([&](const AttemptData& data) {
    view.state = data.state;
    view.wish = data.wish;
    // Rank 0 writes the artifact, whatever node it is on.
    view.delivers = !data.record.committed && data.record.dispatch.first_rank() == 0 &&
                    data.record.verdict.code() == "succeeded";
    view.away = IsAway(data.heard, view.now);
  });
  view.checkpoints_idle = checkpoints_.Idle();
  return view;
}

absl::Status AttemptIo::Do(const IoStep& step) {
  switch (step.what) {
    case IoDo::kWait:
    case IoDo::kTryAgain:
      break;
    case IoDo::kStage:
      return Stage();
    case IoDo::kFindTorch:
      return FindTorch();
    case IoDo::kReady:
      shared_.Enter(v1::AttemptStatus::READY);
      break;
    case IoDo::kShip:
    case IoDo::kShipRest:
      return Ship(step.what == IoDo::kShipRest);
    case IoDo::kLeaveOut:
      LeaveOutUnshipped();
      break;
    case IoDo::kEndCheckpoints:
      if (checkpoints_.End()) context_.services.on_change();
      break;
    case IoDo::kDeliver:
      return Deliver();
    case IoDo::kLoseArtifact:
      LoseArtifact(step.end);
      break;
    case IoDo::kConfirm: {
      const absl::StatusOr<bool> has_all = shipper_.Confirm();
      memory_.has_all = has_all.ok() && *has_all;
      return has_all.status();
    }
    case IoDo::kConclude:
      Conclude(step.end);
      break;
    case IoDo::kFinish:
      if (memory_.shipped && !memory_.shipped->ok()) {
        spdlog::warn("attempt {}: the server disowns it: {}", context_.uid,
                     Message(*memory_.shipped));
      }
      if (shared_.wish().kept) break;
      DropSentAnswers();
      shared_.With([](AttemptData& data) { data.record.done = true; });
      (void)shared_.Save();
      break;
  }
  return absl::OkStatus();
}

absl::Status AttemptIo::Stage() {
  const AttemptServices& services = context_.services;
  const v1::Dispatch dispatch = shared_.record().dispatch;
  const int slots = static_cast<int>(services.inventory.Slots().size());
  for (const int slot : dispatch.slots()) {
    if (slot < 0 || slot >= slots) {
      return Internal(fmt::format("the server placed a rank on slot {} of {}", slot, slots));
    }
  }
  // The server has read the job file: a worker that cannot is too old for it.
  if (!context_.job.ok()) return Internal(Message(context_.job.status()));
  SFT_RETURN_IF_ERROR(
      CheckNetwork(*context_.job, dispatch.slots_size(), dispatch.world_size(), services.setup));
  const ModelAsk ask{.token =
                         [&] {
                           v1::GetHubTokenRequest request;
                           request.set_attempt_uid(context_.uid);
                           request.set_epoch(context_.epoch);
                           request.set_node(context_.node());
                           return services.server.HubToken(request);
                         },
                     .on_text = [this](const std::string& text) { ShowPhase(text); },
                     .on_event = [this](const std::string& text) { context_.Tell("model", text); }};
  SFT_ASSIGN_OR_RETURN(StagedJob staged, services.stager.Stage(
                                             dispatch, context_.job->job.model,
                                             [this] { return shared_.wish().leaves(); }, ask));
  const bool has_rows = !context_.job->serves() && !context_.job->exports();
  if (has_rows && staged.train_file.empty()) {
    return Internal("the dispatch has no file for job.data");
  }
  absl::StatusOr<PortLease> port = PortLease();
  if (dispatch.first_rank() == 0) port = PortLease::Take(services.setup.address);
  if (!port.ok()) return Internal(Message(port.status()));  // the node's fault, not the job's
  shared_.With([&](AttemptData& data) {
    data.prepared.staged = std::move(staged);
    data.prepared.port = *std::move(port);
  });
  return absl::OkStatus();
}

void AttemptIo::ShowPhase(const std::string& text) {
  const bool news = shared_.With([&](AttemptData& data) {
    if (data.progress.phase() == text) return false;
    data.progress.set_phase(text);
    return true;
  });
  if (news) context_.services.on_change();
}

absl::Status AttemptIo::FindTorch() {
  SFT_ASSIGN_OR_RETURN(std::string dir, context_.services.torch_lib_dir());
  shared_.With([&](AttemptData& data) { data.prepared.torch_lib_dir = std::move(dir); });
  return absl::OkStatus();
}

absl::Status AttemptIo::Ship(bool final) {
  SFT_ASSIGN_OR_RETURN(const Shipper::Progress shipped, shipper_.ShipOnce(final));
  memory_.more = shipped.more;
  memory_.complete = shipped.complete;
  return absl::OkStatus();
}

absl::Status AttemptIo::Deliver() {
  SFT_ASSIGN_OR_RETURN(const channel::ArtifactEvent artifact,
                       FindArtifact(context_.dir, context_.rank_user));
  SFT_RETURN_IF_ERROR(DeliverArtifact(
      artifact, context_.uid, context_.epoch, context_.node(), context_.services.server,
      [this] { return shared_.wish().leaves(); }, context_.rank_user));
  shared_.With([](AttemptData& data) { data.record.committed = true; });
  (void)shared_.Save();
  if (artifact.kind == "answers" || artifact.kind == "evaluation") RemoveAnswers();
  return absl::OkStatus();
}

void AttemptIo::RemoveAnswers() {
  const RankRights rights(context_.rank_user);
  const std::string dir = AnswersDir(context_.job_id, context_.services.setup);
  if (const absl::Status removed = io::RemoveAll(dir); !removed.ok()) {
    spdlog::warn("attempt {}: {} stays: {}", context_.uid, dir, Message(removed));
  }
}

void AttemptIo::DropSentAnswers() {
  const bool answered = context_.job.ok() && context_.job->generates() && !context_.job->serves();
  const bool sent = shared_.With([](AttemptData& data) {
    return data.record.dispatch.first_rank() != 0 && data.record.verdict.code() == "succeeded";
  });
  // In a shared folder they are rank 0's, too.
  if (answered && sent && !context_.services.setup.has_shared) RemoveAnswers();
}

void AttemptIo::TellFailure(IoTask task) {
  const Retries& retries = memory_.Of(task);
  const MonoTime now = context_.services.clock.Mono();
  const auto [what, why] = [&]() -> std::pair<std::string_view, absl::Status> {
    switch (task) {
      case IoTask::kStaging:
        return {"staging", *memory_.staged};
      case IoTask::kLive:
        return {"sending logs and events", *memory_.shipped};
      case IoTask::kShipping:
        return {"sending the rest of logs and events", *memory_.shipped};
      case IoTask::kDelivery:
        break;
    }
    return {"delivery", memory_.asked ? *memory_.asked : *memory_.delivered};
  }();
  const std::string text = retries.Text(what, why, now);
  // What passes by itself at once, as when the server is restarted, is no news for the job's owner.
  if (retries.failures() == kFailuresToldOf) {
    context_.Warn(text);
  } else {
    spdlog::log(retries.failures() == 1 ? spdlog::level::warn : spdlog::level::debug,
                "attempt {}: {}", context_.uid, text);
  }
  shared_.With([&](AttemptData& data) { data.retrying = text; });
  context_.services.on_change();
}

void AttemptIo::ForgetFailure() {
  const bool told =
      shared_.With([](AttemptData& data) { return !std::exchange(data.retrying, "").empty(); });
  if (told) context_.services.on_change();
}

void AttemptIo::LeaveOutUnshipped() {
  const std::string why(Message(*memory_.shipped));
  for (const std::string& each : shipper_.GiveUp()) {
    spdlog::error("attempt {}: {} is left out: {}", context_.uid, each, why);
    shared_.With([&](AttemptData& data) {
      data.record.verdict.add_evidence(
          fmt::format("the server did not take {} ({}): {}", each, memory_.shipping.Counts(), why));
    });
  }
}

void AttemptIo::LoseArtifact(AttemptEnd end) {
  // The training succeeded, the job did not: what it was for is not there.
  const std::string& node = context_.node();
  shared_.With([&](AttemptData& data) {
    const std::string& reason = data.wish.stop_reason;
    data.record.verdict =
        end == AttemptEnd::kStopped
            ? SimpleVerdict(v1::Verdict::NONE, "stopped", reason, "", node)
            : SimpleVerdict(
                  v1::Verdict::INFRASTRUCTURE, "artifact_lost",
                  fmt::format("the artifact could not be delivered: {}",
                              Message(*memory_.delivered)),
                  "look at the logs of rank 0 and of the worker, and at the server's disk",
                  IsFinal(*memory_.delivered) ? node : "");
  });
}

void AttemptIo::Conclude(AttemptEnd end) {
  const std::string& node = context_.node();
  v1::Verdict verdict;
  if (end == AttemptEnd::kStopped) {
    verdict = SimpleVerdict(v1::Verdict::NONE, "stopped", shared_.wish().stop_reason, "", node);
  } else if (end == AttemptEnd::kNoTorch) {
    verdict = SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "ranks_cannot_start",
                            std::string(Message(*memory_.torch)),
                            fmt::format("look at node {}", node), node);
  } else if (end == AttemptEnd::kStagingGivenUp) {
    verdict =
        MakeStagingVerdict(Internal(fmt::format("staging failed {}: {}", memory_.staging.Counts(),
                                                Message(*memory_.staged))),
                           node);
  } else {
    verdict = MakeStagingVerdict(*memory_.staged, node);
  }
  shared_.Conclude(verdict);
}

namespace {

// The last step of each rank, by rank.
void NoteRank(int rank, const channel::StepEvent& step, v1::Progress& progress) {
  auto& ranks = *progress.mutable_ranks();
  auto place = std::find_if(ranks.begin(), ranks.end(),
                            [&](const v1::RankProgress& each) { return each.rank() >= rank; });
  if (place == ranks.end() || place->rank() != rank) {
    const auto index = place - ranks.begin();
    ranks.Add()->set_rank(rank);
    std::rotate(ranks.begin() + index, ranks.end() - 1, ranks.end());
    place = ranks.begin() + index;
  }
  place->set_step(step.step);
  place->set_gpu_memory_bytes(step.gpu_memory_bytes);
}

}  // namespace

void AttemptIo::OnEvent(int rank, const channel::Event& event) {
  const auto* checkpoint = std::get_if<channel::CheckpointEvent>(&event.body);
  if (checkpoint != nullptr) {
    checkpoints_.Add(*checkpoint);
    context_.services.on_change();
    return;
  }
  shared_.With([&](AttemptData& data) {
    v1::Progress& shown = data.progress;
    if (const auto* progress = std::get_if<channel::ProgressEvent>(&event.body)) {
      shown.set_phase(fmt::format("{} {}/{}", progress->phase, progress->done, progress->total));
    }
    if (const auto* step = std::get_if<channel::StepEvent>(&event.body))
      NoteRank(rank, *step, shown);
    if (rank != 0) return;
    if (const auto* ready = std::get_if<channel::ReadyEvent>(&event.body)) {
      shown.set_phase("");
      shown.set_total_steps(ready->total_steps);
      shown.set_trainable_parameters(ready->trainable_parameters);
      shown.set_total_parameters(ready->total_parameters);
    } else if (const auto* step = std::get_if<channel::StepEvent>(&event.body)) {
      rpc::Advance(MetricOf(*step), shown);
    } else if (const auto* answers = std::get_if<channel::AnswersEvent>(&event.body)) {
      rpc::Advance(MetricOf(*answers), shown);
    } else if (const auto* eval = std::get_if<channel::EvalEvent>(&event.body)) {
      rpc::Advance(MetricOf(*eval), shown);
    }
  });
}

}  // namespace sft::worker
