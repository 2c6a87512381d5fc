#include <limits>

#include "worker/attempt/decide.h"
#include "worker/attempt/staging.h"
#include "worker/transfer/blob_file.h"

namespace sft::worker {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// Staging stands between a job and its start: another node may do better.
constexpr Retries::Limit kStagingLimit{10, minutes(15)};
// Logs and events wait for nobody while the ranks work: never enough.
constexpr Retries::Limit kLiveShippingLimit{std::numeric_limits<int>::max(), Nanos::max()};
// At an attempt's end its slots wait for them.
constexpr Retries::Limit kShippingLimit{20, hours(1)};
// The artifact is what the whole attempt was for, and a full disk of the server may last.
constexpr Retries::Limit kDeliveryLimit{20, hours(6)};

// How soon new bytes of a log or an event are seen.
constexpr milliseconds kLiveInterval{150};
// While a last checkpoint is written: what is trained after it is trained again.
constexpr milliseconds kStoppingInterval{25};
constexpr seconds kIdleInterval{3600};  // the io thread is woken when something changes

IoStep Wait(Nanos time) { return {.what = IoDo::kWait, .then = time}; }
IoStep Do(IoDo what) { return {.what = what}; }
IoStep End(AttemptEnd end) { return {.what = IoDo::kConclude, .then = Nanos(0), .end = end}; }
IoStep Finish() { return {.what = IoDo::kFinish, .then = kIdleInterval}; }

// Counts the failure, then waits for the next try.
IoStep TryAgain(IoTask task, const Retries& retries, const IoView& view, const IoMemory& memory) {
  if (!memory.counted) return {.what = IoDo::kTryAgain, .task = task};
  return Wait(retries.Wait(view.now));
}

IoStep DecideStaging(const IoView& view, const IoMemory& memory) {
  if (view.wish.stop) return End(AttemptEnd::kStopped);
  if (view.wish.interrupted) return Wait(kIdleInterval);
  if (!memory.staged) {
    // Whatever changes elsewhere wakes this thread.
    const Nanos wait = memory.staging.Wait(view.now);
    return wait > Nanos(0) ? Wait(wait) : Do(IoDo::kStage);
  }
  if (IsPassing(*memory.staged)) {
    if (memory.counted && memory.staging.Enough()) return End(AttemptEnd::kStagingGivenUp);
    return TryAgain(IoTask::kStaging, memory.staging, view, memory);
  }
  if (!memory.staged->ok()) return End(AttemptEnd::kStagingFailed);
  if (!memory.torch) return Do(IoDo::kFindTorch);
  if (!memory.torch->ok()) return End(AttemptEnd::kNoTorch);
  return {.what = IoDo::kReady, .then = kIdleInterval};
}

IoStep DecideShipping(const IoView& view, const IoMemory& memory) {
  if (view.wish.abandoned) return Wait(kIdleInterval);
  if (!memory.shipped) {
    const Nanos wait = memory.live.Wait(view.now);
    return wait > Nanos(0) ? Wait(wait) : Do(IoDo::kShip);
  }
  if (!memory.shipped->ok()) return TryAgain(IoTask::kLive, memory.live, view, memory);
  if (memory.more) return Wait(Nanos(0));
  return Wait(view.state == v1::AttemptStatus::STOPPING ? kStoppingInterval : kLiveInterval);
}

// The artifact of an attempt whose training succeeded.
IoStep DecideDelivery(const IoView& view, const IoMemory& memory) {
  if (!memory.delivered) return Do(IoDo::kDeliver);
  if (memory.counted) return Wait(memory.delivery.Wait(view.now));
  const bool stopped = absl::IsAborted(*memory.delivered) && view.wish.leaves();
  if (!stopped && !IsFinal(*memory.delivered) && !memory.delivery.Enough()) {
    return TryAgain(IoTask::kDelivery, memory.delivery, view, memory);
  }
  return {.what = IoDo::kLoseArtifact,
          .end = stopped ? AttemptEnd::kStopped : AttemptEnd::kArtifactLost};
}

IoStep DecideEnd(const IoView& view, const IoMemory& memory) {
  if (view.wish.interrupted) return Wait(kIdleInterval);
  if (view.wish.abandoned) return Finish();
  if (!memory.shipped) {
    const Nanos wait = std::max(memory.shipping.Wait(view.now), memory.delivery.Wait(view.now));
    return wait > Nanos(0) ? Wait(wait) : Do(IoDo::kShipRest);
  }
  if (IsDisowned(*memory.shipped)) return Finish();
  if (!memory.shipped->ok()) {
    const bool enough = memory.shipping.Enough() || IsFinal(*memory.shipped);
    if (!memory.counted || !enough) {
      return TryAgain(IoTask::kShipping, memory.shipping, view, memory);
    }
    return {.what = IoDo::kLeaveOut, .then = Nanos(0)};
  }
  if (!memory.complete) return Wait(Nanos(0));
  if (!view.checkpoints_idle) return {.what = IoDo::kEndCheckpoints, .then = kLiveInterval};
  if (view.delivers) return DecideDelivery(view, memory);
  // The delivery may have taken hours, in which a server may lose what it had.
  if (!memory.asked && !memory.confirmed) return Do(IoDo::kConfirm);
  if (memory.asked && memory.asked->ok() && !memory.has_all) return Wait(Nanos(0));
  if (!memory.confirmed) return TryAgain(IoTask::kDelivery, memory.delivery, view, memory);
  return Finish();
}

}  // namespace

bool IsFinal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsNotFound(status) || absl::IsPermissionDenied(status) ||
         absl::IsAlreadyExists(status) || absl::IsUnimplemented(status);
}

bool IsDisowned(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsNotFound(status);
}

IoMemory::IoMemory()
    : staging(kStagingLimit),
      live(kLiveShippingLimit),
      shipping(kShippingLimit),
      delivery(kDeliveryLimit) {}

Retries& IoMemory::Of(IoTask task) {
  switch (task) {
    case IoTask::kStaging:
      return staging;
    case IoTask::kLive:
      return live;
    case IoTask::kShipping:
      return shipping;
    case IoTask::kDelivery:
      return delivery;
  }
  return delivery;
}

void IoMemory::BeginPiece() {
  staged.reset();
  torch.reset();
  shipped.reset();
  delivered.reset();
  asked.reset();
  more = complete = has_all = counted = false;
}

IoStep DecideIo(const IoView& view, const IoMemory& memory) {
  switch (view.state) {
    case v1::AttemptStatus::STAGING:
      return DecideStaging(view, memory);
    case v1::AttemptStatus::PREPARING:
    case v1::AttemptStatus::RUNNING:
    case v1::AttemptStatus::STOPPING:
      return DecideShipping(view, memory);
    case v1::AttemptStatus::FINISHING:
      return DecideEnd(view, memory);
    default:
      return Wait(kIdleInterval);
  }
}

void Note(const IoStep& step, const absl::Status& result, const IoView& view, IoMemory& memory) {
  switch (step.what) {
    case IoDo::kStage:
      memory.staged = result;
      if (IsPassing(result) && HasProgressed(result)) memory.staging.Succeeded();
      return;
    case IoDo::kFindTorch:
      memory.torch = result;
      return;
    case IoDo::kReady:
      memory.staging.Succeeded();
      return;
    case IoDo::kShip:
      memory.shipped = result;
      if (result.ok()) memory.live.Succeeded();
      return;
    case IoDo::kShipRest:
      memory.shipped = result;
      if (result.ok()) memory.shipping.Succeeded();
      return;
    case IoDo::kTryAgain:
      memory.Of(step.task).Failed(view.now, view.away);
      memory.counted = true;
      return;
    case IoDo::kLeaveOut:
      memory.shipping.Succeeded();
      return;
    case IoDo::kDeliver:
      memory.delivered = result;
      return;
    case IoDo::kConfirm:
      memory.asked = result;
      memory.confirmed = result.ok() || IsFinal(result) || memory.delivery.Enough();
      return;
    case IoDo::kFinish:
      memory.delivery.Succeeded();
      return;
    default:
      return;
  }
}

}  // namespace sft::worker
