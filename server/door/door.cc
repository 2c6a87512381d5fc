#include "server/door/door.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <exception>

#include "common/base/utf8.h"
#include "server/door/fields.h"
#include "server/door/known_values.h"
#include "server/door/methods.h"

namespace sft::server {
namespace {

// A job file of this size or more is told of in the log before it is read: should it end the
// process, the log says whose it was.
constexpr size_t kLargeRequest = 16 << 10;

// What the audit says that a request is about.
std::string ObjectOf(const google::protobuf::Message& request, const std::string& of_project) {
  for (const char* field : {"name", "id", "sha256", "node", "user", "sweep"}) {
    std::string value = StringField(request, field);
    if (!value.empty()) return value.substr(0, 200);
  }
  const std::string project = of_project.empty() ? StringField(request, "project") : of_project;
  return project.empty() ? "" : "projects/" + project.substr(0, 80);
}

// What lists and messages show to others.
absl::Status CheckShown(const google::protobuf::Message& request) {
  for (const char* name : {"reason", "comment", "file_name", "request_id"}) {
    const std::string hidden = FindHidden(StringField(request, name));
    if (hidden.empty()) continue;
    return InvalidArgument(fmt::format(
        "{} holds {}, which is a control character or cannot be seen; leave it out", name, hidden));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Door::Serve(const Method& method, Exchange& exchange) {
  const MonoTime begin = gate_.now();
  CallContext call(gate_, method.rule, exchange);
  absl::Status told = Ended(call, Try(method, [&] { return method.run(*this, call, exchange); }));
  gate_.times().Count(method.rule.method, told.code(), gate_.now() - begin);
  return told;
}

absl::Status Door::Try(const Method& method, const std::function<absl::Status()>& part) {
  try {
    return part();
  } catch (const std::exception& error) {
    absl::Status status = Internal(fmt::format("{} failed: {}", method.rule.method, error.what()));
    spdlog::error("{}", Message(status));
    return status;
  }
}

absl::Status Door::Ended(CallContext& call, const absl::Status& status) {
  const absl::Status& told = call.refusal_.ok() ? status : call.refusal_;
  Record(call, told);
  return told;
}

absl::Status Door::AdmitAnybody(CallContext& call) {
  if (call.rule_.caller != Caller::kAnybody) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(call.place_, gate_.EnterAsAnybody(call.origin_.peer));
  return absl::OkStatus();
}

absl::Status Door::AdmitCaller(CallContext& call, bool streams, const std::string& project) {
  SFT_RETURN_IF_ERROR(call.Identify(project));
  return streams && call.stream_of_.empty() ? call.CountStream() : absl::OkStatus();
}

absl::Status Door::AdmitRequest(CallContext& call, bool streams,
                                const google::protobuf::Message& request,
                                const google::protobuf::Message& named) {
  absl::Status status =
      AdmitCaller(call, streams || call.rule_.waits, StringField(named, "project"));
  if (status.ok()) status = CheckKnownValues(request);
  if (status.ok()) status = call.AdmitRequest(named);
  if (status.ok()) status = CheckShown(named);
  if (status.ok() && !streams) TellLarge(call, request);
  call.object_ = ObjectOf(named, call.project_);
  const bool change = call.rule_.audit == Audit::kChange;
  if (status.ok() && change && !ChangesNothing(named)) call.audit_ = AuditRow{call.Record()};
  return status;
}

void Door::Record(CallContext& call, const absl::Status& status) {
  const AuditRow* const row = call.audit();
  const bool written = row != nullptr && row->written;
  if (status.ok() && (row == nullptr || written)) return;
  AuditRecord record = row == nullptr ? call.Record() : row->record;
  record.outcome = static_cast<int>(status.code());
  if (!status.ok() && !written) {
    // Whoever follows something ends it so.
    if (!absl::IsCancelled(status)) gate_.failed().Count(record);
    return;
  }
  const absl::Status kept =
      gate_.store().Write([&](Database& db) { return store::InsertAudit(db, record); });
  if (!kept.ok()) {
    spdlog::error("no audit row for {} of {} by {}: {}", record.method, record.object,
                  record.principal, Message(kept));
  }
}

void Door::TellLarge(const CallContext& call, const google::protobuf::Message& request) {
  const size_t bytes = request.ByteSizeLong();
  if (bytes < kLargeRequest) return;
  const AuditRecord told = call.Record();
  if (!gate_.IsNews(fmt::format("large {} {}", told.principal, told.method))) return;
  spdlog::info("{} calls {} with {} bytes, from {}", told.principal, told.method, bytes, told.peer);
}

}  // namespace sft::server
