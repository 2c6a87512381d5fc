#include "server/fleet/model_copies.h"

#include <absl/cleanup/cleanup.h>
#include <fmt/format.h>

#include "common/hub/model_name.h"
#include "common/io/paths.h"
#include "server/store/nodes.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

absl::Status NoCopy(const v1::FetchModelFileRequest& request) {
  return NotFound(
      fmt::format("no other node that is connected has {}@{}", request.model(), request.commit()));
}

}  // namespace

absl::StatusOr<std::vector<ModelRecord>> ModelCopies::Copies(
    const v1::FetchModelFileRequest& request) {
  const auto name = hub::ParseModelName(request.model());
  if (!name || name->id != request.model() || !hub::IsCommit(request.commit()) ||
      !io::IsSafeRelative(request.path()) || request.offset() < 0) {
    return InvalidArgument("model, commit, path or offset of a model's file is none");
  }
  std::vector<ModelRecord> copies;
  bool needed = false;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(needed, store::NodeNeedsModel(db, request.node(), request.model()));
    if (!needed) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(copies, store::SnapshotsOf(db, request.model(), request.commit()));
    return absl::OkStatus();
  }));
  if (!needed) {
    return NotFound(fmt::format("no attempt on node {} is of a job with model {}", request.node(),
                                request.model()));
  }
  std::erase_if(copies, [&](const ModelRecord& copy) {
    return copy.node == request.node() || !copy.problem.empty() ||
           !registry_.IsConnected(copy.node);
  });
  return copies;
}

absl::Status ModelCopies::SendFrom(const ModelRecord& copy,
                                   const v1::FetchModelFileRequest& request, const Take& take,
                                   const FileRelay::Gone& gone) {
  {
    const MutexLock lock(mutex_);
    int& sending = of_node_[copy.node];
    if (sending >= kMostOfNode) {
      return ResourceExhausted(fmt::format("node {} sends {} files of models", copy.node, sending));
    }
    ++sending;
  }
  const absl::Cleanup ended = [&] {
    const MutexLock lock(mutex_);
    if (--of_node_[copy.node] == 0) of_node_.erase(copy.node);
  };
  const auto transfer = relay_.Start(copy.node, copy.path + "/" + request.path(), request.offset(),
                                     /*jobs=*/{});
  if (absl::IsUnavailable(transfer.status())) return NoCopy(request);
  SFT_RETURN_IF_ERROR(transfer.status());
  bool begun = false;
  for (;;) {
    absl::StatusOr<v1::SendFileRequest> chunk = (*transfer)->Next(FileRelay::kPatience, gone);
    if (!chunk.ok() && begun) return Unavailable(Message(chunk.status()));
    if (!chunk.ok()) return absl::IsCancelled(chunk.status()) ? chunk.status() : NoCopy(request);
    v1::FetchModelFileResponse part;
    if (!begun) part.set_from_node(copy.node);
    const bool last = chunk->data().empty();
    *part.mutable_data() = std::move(*chunk->mutable_data());
    if ((!last || !begun) && !take(part)) return absl::CancelledError("the caller has gone");
    begun = true;
    if (last) return absl::OkStatus();
  }
}

absl::Status ModelCopies::Send(const v1::FetchModelFileRequest& request, const Take& take,
                               const FileRelay::Gone& gone) {
  SFT_ASSIGN_OR_RETURN(const std::vector<ModelRecord> copies, Copies(request));
  if (copies.empty()) return NoCopy(request);
  {
    const MutexLock lock(mutex_);
    if (under_way_ >= kMostAtOnce) {
      return ResourceExhausted(fmt::format("{} files of models are on their way", under_way_));
    }
    ++under_way_;
  }
  const absl::Cleanup ended = [this] {
    const MutexLock lock(mutex_);
    --under_way_;
  };
  absl::Status busy;
  for (const ModelRecord& copy : copies) {
    const absl::Status status = SendFrom(copy, request, take, gone);
    // Another node may have it, where nothing came of this one.
    if (absl::IsResourceExhausted(status)) {
      busy = status;
    } else if (!absl::IsNotFound(status)) {
      return status;
    }
  }
  return busy.ok() ? NoCopy(request) : busy;
}

}  // namespace sft::server
