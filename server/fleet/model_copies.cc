#include "server/fleet/model_copies.h"

#include <absl/cleanup/cleanup.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/plain_text.h"
#include "common/hub/model_name.h"
#include "common/io/model_folder.h"
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

absl::StatusOr<std::vector<ModelRecord>> ModelCopies::CopiesFor(const FolderReader& reader,
                                                                const std::string& model) {
  std::vector<ModelRecord> copies;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    const auto name = hub::ParseModelName(model);
    const bool of_commit = name && hub::IsCommit(name->revision);
    SFT_ASSIGN_OR_RETURN(
        const std::vector<ModelRecord> all,
        of_commit ? store::SnapshotsOf(db, name->id, name->revision) : store::CopiesOf(db, model));
    for (const ModelRecord& copy : all) {
      SFT_ASSIGN_OR_RETURN(const bool may, MayRead(db, reader, {copy.id, copy.path}));
      if (may) copies.push_back(copy);
    }
    return absl::OkStatus();
  }));
  if (copies.empty()) {
    return NotFound(fmt::format(
        "no node has the model {}: `sftctl models` lists those that there are", Plain(model, 200)));
  }
  std::erase_if(copies, [&](const ModelRecord& copy) { return !registry_.IsConnected(copy.node); });
  if (copies.empty()) {
    return NotFound(
        fmt::format("no node that has the model {} is connected now", Plain(model, 200)));
  }
  return copies;
}

absl::Status ModelCopies::SendFrom(const ModelRecord& copy, const std::string& file, int64_t offset,
                                   const TakeBytes& take, const FileRelay::Gone& gone) {
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
  const auto transfer =
      relay_.Start(copy.node, copy.path + "/" + file, offset, JobsInPaths({copy.path}));
  SFT_RETURN_IF_ERROR(transfer.status());
  bool begun = false;
  for (;;) {
    absl::StatusOr<v1::SendFileRequest> chunk = (*transfer)->Next(FileRelay::kPatience, gone);
    if (!chunk.ok()) return begun ? Unavailable(Message(chunk.status())) : chunk.status();
    const bool last = chunk->data().empty();
    if ((!last || !begun) && !take(std::move(*chunk->mutable_data()))) {
      return absl::CancelledError("the caller has gone");
    }
    begun = true;
    if (last) return absl::OkStatus();
  }
}

absl::StatusOr<std::shared_ptr<void>> ModelCopies::Begin(const std::string& reader) {
  const MutexLock lock(mutex_);
  if (reader.empty()) {
    if (under_way_ >= kMostAtOnce) {
      return ResourceExhausted(fmt::format("{} files of models are on their way", under_way_));
    }
    ++under_way_;
  } else {
    if (of_users_ >= kMostOfUsers || of_reader_[reader] >= kMostOfReader) {
      return ResourceExhausted(
          fmt::format("{} tokenizers are being fetched: try again later", of_users_));
    }
    ++of_users_;
    ++of_reader_[reader];
  }
  return std::shared_ptr<void>(this, [this, reader](void*) {
    const MutexLock ending(mutex_);
    if (reader.empty()) {
      --under_way_;
    } else {
      --of_users_;
      if (--of_reader_[reader] == 0) of_reader_.erase(reader);
    }
  });
}

absl::Status ModelCopies::Send(const v1::FetchModelFileRequest& request, const Take& take,
                               const FileRelay::Gone& gone) {
  SFT_ASSIGN_OR_RETURN(const std::vector<ModelRecord> copies, Copies(request));
  if (copies.empty()) return NoCopy(request);
  SFT_ASSIGN_OR_RETURN(const std::shared_ptr<void> counted, Begin());
  absl::Status busy;
  for (const ModelRecord& copy : copies) {
    bool begun = false;
    const auto pass_on = [&](std::string bytes) {
      v1::FetchModelFileResponse part;
      if (!std::exchange(begun, true)) part.set_from_node(copy.node);
      part.set_data(std::move(bytes));
      return take(part);
    };
    const absl::Status status = SendFrom(copy, request.path(), request.offset(), pass_on, gone);
    if (status.ok() || begun || absl::IsCancelled(status)) return status;
    // Another node may have it, where nothing came of this one.
    if (absl::IsResourceExhausted(status)) busy = status;
  }
  return busy.ok() ? NoCopy(request) : busy;
}

absl::Status ModelCopies::SendTokenizer(const std::string& model, const FolderReader& reader,
                                        const TakeText& take, const FileRelay::Gone& gone) {
  SFT_ASSIGN_OR_RETURN(const std::vector<ModelRecord> copies, CopiesFor(reader, model));
  SFT_ASSIGN_OR_RETURN(const std::shared_ptr<void> counted, Begin(reader.owner));
  absl::Status last;
  for (const ModelRecord& copy : copies) {
    // Every model has this one.
    bool begun = false;
    last = SendFrom(
        copy, "config.json", 0,
        [&](std::string bytes) {
          begun = true;
          return take("config.json", std::move(bytes));
        },
        gone);
    if (begun || absl::IsCancelled(last)) SFT_RETURN_IF_ERROR(last);
    if (!last.ok()) continue;
    std::vector<std::string_view> sent;
    for (const std::string_view file : io::kModelCompanions) {
      const absl::Status status = SendFrom(
          copy, std::string(file), 0,
          [&](std::string bytes) { return take(file, std::move(bytes)); }, gone);
      if (absl::IsNotFound(status)) continue;  // most models have some of them
      SFT_RETURN_IF_ERROR(status);
      sent.push_back(file);
    }
    const auto has = [&](std::string_view file) {
      return std::ranges::find(sent, file) != sent.end();
    };
    if (io::FindTokenizer(has) != nullptr) return absl::OkStatus();
    return NotFound(
        fmt::format("node {} sends no tokenizer of {}: it has none, or its worker is older "
                    "than this server",
                    copy.node, Plain(model, 200)));
  }
  return last;
}

}  // namespace sft::server
