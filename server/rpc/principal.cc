#include "server/rpc/principal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <spdlog/spdlog.h>

#include "common/base/random.h"
#include "common/base/utf8.h"
#include "common/rpc/status.h"
#include "server/rpc/known_values.h"
#include "server/state/names.h"
#include "server/store/audit.h"
#include "server/store/jobs.h"
#include "server/store/storage.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

constexpr char kKey[] = "sft-call";
constexpr char kSession[] = "/sft.v1.WorkerService/Session";
constexpr char kAuthorization[] = "authorization";
constexpr char kCertificate[] = "x509_pem_cert";
// HealthService limits its streams itself.
constexpr std::string_view kHealth = "/grpc.health.v1.Health/";
constexpr char kNoRule[] = "methods without a rule";
// In the audit, a caller whom nothing names.
constexpr char kNobody[] = "nobody";
// A job file of this size or more is told of in the log before it is read: should it end the
// process, the log says whose it was.
constexpr size_t kLargeRequest = 16 << 10;

// One call; lives in its interceptor.
struct Call {
  Gate* gate = nullptr;
  const grpc::ServerContextBase* context = nullptr;
  std::string method;
  const Rule* rule = nullptr;
  Principal principal;
  std::string project, named;  // what Admit has found, for AdmitStill
  std::string object;          // what the audit says that it is about
  bool streams = false;        // either side sends more than one message
  std::string stream_of;       // of whom it is counted as a stream; empty: it is not
};

// How the interceptor tells a handler where its call is. The mark is this process's secret: what a
// peer sends is taken away before, and could not pass for one either.
struct Handle {
  uint64_t mark = 0;
  Call* call = nullptr;
};
uint64_t Mark() {
  static const uint64_t mark = uint64_t{RandomWord()} << 32 | RandomWord();
  return mark;
}

std::string CertificateOf(const grpc::AuthContext& context) {
  const auto values = context.FindPropertyValues(kCertificate);
  return values.empty() ? "" : std::string(values.front().data(), values.front().size());
}

template <typename Metadata>
std::string_view AuthorizationOf(const Metadata& metadata) {
  const auto found = metadata.find(kAuthorization);
  if (found == metadata.end()) return {};
  return {found->second.data(), found->second.size()};
}

// "ipv6:%5B::1%5D:5" as "ipv6:[::1]:5".
std::string PeerOf(std::string peer) {
  for (const auto& [code, sign] : {std::pair("%5B", "["), std::pair("%5D", "]")}) {
    const size_t at = peer.find(code);
    if (at != peer.npos) peer.replace(at, 3, sign);
  }
  return peer;
}

// Once for a call that is a stream; its interceptor ends it.
absl::Status CountStream(Call& call, const std::string& who, int limit) {
  if (!call.streams || !call.stream_of.empty()) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(call.gate->BeginStream(who, limit));
  call.stream_of = who;
  return absl::OkStatus();
}

// "JobService.SubmitJob"
std::string ShownMethod(std::string method) {
  constexpr std::string_view kPackage = "/sft.v1.";
  if (method.starts_with(kPackage)) method.erase(0, kPackage.size());
  std::replace(method.begin(), method.end(), '/', '.');
  return method;
}

AuditRecord RecordOf(const Call& call) {
  return {.time_us = call.gate->now_us(),
          .principal = call.principal.name.empty() ? kNobody : call.principal.Title(),
          .token = call.principal.token,
          .peer = PeerOf(call.context->peer()),
          .method = ShownMethod(call.method),
          .object = call.object};
}

// Of a call that has ended: counts it where it was refused or failed, and writes the row of a
// change unless a write of its own did.
void Record(const Call& call, const grpc::Status& status) {
  const bool change = call.rule != nullptr && call.rule->change;
  const std::unique_ptr<AuditScope::Ended> ended = change ? AuditScope::End() : nullptr;
  const bool written = ended != nullptr && ended->written;
  if (status.ok() && (ended == nullptr || written)) return;
  AuditRecord record = ended == nullptr ? RecordOf(call) : std::move(ended->record);
  record.outcome = status.error_code();
  if (!status.ok() && !written) {
    // Whoever follows something ends it so.
    if (status.error_code() != grpc::StatusCode::CANCELLED) call.gate->failed().Count(record);
    return;
  }
  const absl::Status kept =
      call.gate->store().Write([&](Database& db) { return store::InsertAudit(db, record); });
  if (!kept.ok()) {
    spdlog::error("no audit row for {} of {} by {}: {}", record.method, record.object,
                  record.principal, Message(kept));
  }
}

class Interceptor : public grpc::experimental::Interceptor {
 public:
  Interceptor(Gate& gate, grpc::experimental::ServerRpcInfo& info) {
    call_.gate = &gate;
    call_.context = info.server_context();
    call_.method = info.method();
    call_.rule = FindRule(call_.method);
    call_.streams = info.type() != grpc::experimental::ServerRpcInfo::Type::UNARY;
    gate.Count(1);
  }
  ~Interceptor() override {
    if (!call_.stream_of.empty()) call_.gate->EndStream(call_.stream_of);
    call_.gate->Count(-1);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_INITIAL_METADATA)) {
      // Whatever the peer sent under our key goes; its value is the place of the call.
      auto* metadata = methods->GetRecvInitialMetadata();
      metadata->erase(kKey);
      handle_ = {Mark(), &call_};
      metadata->emplace(kKey,
                        grpc::string_ref(reinterpret_cast<const char*>(&handle_), sizeof(handle_)));
      // Its handler is the library's: Admit will not be called.
      if (call_.rule == nullptr && !call_.method.starts_with(kHealth) &&
          !CountStream(call_, kNoRule, Gate::kMaxStreamsWithoutRule).ok()) {
        call_.context->TryCancel();
      }
    }
    if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS)) {
      Record(call_, methods->GetSendStatus());
    }
    methods->Proceed();
  }

 private:
  Call call_;
  Handle handle_;
};

class Factory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(Gate& gate) : gate_(gate) {}
  // The library deletes what this returns.
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    if (info->method() == std::string_view(kSession)) return nullptr;
    return std::make_unique<Interceptor>(gate_, *info).release();
  }

 private:
  Gate& gate_;
};

// What the peer asks for, where it is one of ours.
template <typename Metadata>
std::string MethodOf(const Metadata& metadata) {
  const auto path = metadata.find(":path");
  if (path == metadata.end()) return FailedCalls::kOtherCalls;
  const std::string method(path->second.data(), path->second.size());
  return FindRule(method) == nullptr ? FailedCalls::kOtherCalls : ShownMethod(method);
}

class Authenticator : public grpc::AuthMetadataProcessor {
 public:
  explicit Authenticator(Gate& gate) : gate_(gate) {}
  bool IsBlocking() const override { return false; }  // all of it is in memory
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto principal = gate_.Authenticate(CertificateOf(*context), AuthorizationOf(metadata));
    if (!principal.ok()) {
      gate_.failed().Count({.principal = kNobody,
                            .method = MethodOf(metadata),
                            .outcome = static_cast<int>(principal.status().code())});
      if (gate_.IsNews(std::string(Message(principal.status())))) {
        spdlog::warn("a call was refused: {}", Message(principal.status()));
      }
    }
    return rpc::ToGrpc(principal.status());
  }

 private:
  Gate& gate_;
};

// Null for a call that came past the interceptor.
Call* CallOf(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kKey);
  Handle handle;
  if (found == metadata.end() || found->second.size() != sizeof(handle)) return nullptr;
  std::copy_n(found->second.data(), sizeof(handle), reinterpret_cast<char*>(&handle));
  return handle.mark == Mark() ? handle.call : nullptr;
}

std::string StringField(const google::protobuf::Message& message, const char* name) {
  const auto* field = message.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->is_repeated() ||
      field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
    return "";
  }
  return message.GetReflection()->GetString(message, field);
}

// A dry run, as requests call it.
bool ChangesNothing(const google::protobuf::Message& request) {
  for (const char* name : {"validate_only", "dry_run"}) {
    const auto* field = request.GetDescriptor()->FindFieldByName(name);
    if (field != nullptr && request.GetReflection()->GetBool(request, field)) return true;
  }
  return false;
}

// The command that gives a role beside those that somebody has: `user set` replaces all of them.
std::string CommandForRole(const Principal& principal, Role role, const std::string& project) {
  constexpr size_t kMostNamed = 20;
  std::map<std::string, Role> roles = principal.roles;
  if (roles.size() >= kMostNamed) {
    return fmt::format(
        "`sftctl admin user set {} --project {}={}` with all of its other roles "
        "(`sftctl admin user list`)",
        principal.Title(), project, ToString(role));
  }
  roles[project] = role;
  std::string command = fmt::format("`sftctl admin user set {}", principal.Title());
  for (const auto& [name, has] : roles) {
    if (has != Role::kNone) command += fmt::format(" --project {}={}", name, ToString(has));
  }
  return command + "`";
}

absl::Status NeedsRole(const Principal& principal, Role needed, const std::string& project) {
  const Role has = project.empty() ? principal.Best() : principal.RoleIn(project);
  const std::string where = project.empty() ? "any project" : "project " + project;
  if (needed == Role::kAdmin) {
    return PermissionDenied(
        fmt::format("{} is no admin, and only an admin may do this", principal.Title()));
  }
  // Whoever has a role in one project alone means that one.
  const std::string meant = IsValidLabel(project)         ? project
                            : principal.roles.size() == 1 ? principal.roles.begin()->first
                                                          : "PROJECT";
  const std::string command = CommandForRole(principal, needed, meant);
  if (has == Role::kNone) {
    return PermissionDenied(fmt::format("{} has no role in {}: an admin gives one with {}",
                                        principal.Title(), where, command));
  }
  return PermissionDenied(
      fmt::format("{} is {} in {}, and this needs {}: an admin gives it with {}", principal.Title(),
                  ToString(has), where, ToString(needed), command));
}

// Who it is, and whether its kind and its highest role will do. `project`: that the request names.
absl::Status Identify(Call& call, const std::string& project = "") {
  if (call.rule == nullptr) {
    return PermissionDenied(fmt::format("no rule says who may call {}", call.method));
  }
  const auto auth = call.context->auth_context();
  absl::StatusOr<Principal> principal =
      call.gate->Authenticate(auth == nullptr ? "" : CertificateOf(*auth),
                              AuthorizationOf(call.context->client_metadata()));
  if (!principal.ok()) return principal.status();
  call.principal = *std::move(principal);
  const Principal& who = call.principal;
  const Caller wanted = call.rule->caller;
  using Kind = Principal::Kind;
  const bool as_node = who.kind == Kind::kNode || who.local;
  const bool fits = (wanted == Caller::kUser && who.kind == Kind::kUser) ||
                    (wanted == Caller::kNode && as_node) ||
                    (wanted == Caller::kEither && who.kind != Kind::kJoiner) ||
                    (wanted == Caller::kJoiner && who.kind == Kind::kJoiner);
  if (!fits && wanted == Caller::kJoiner) {
    return PermissionDenied("a node joins with a join token (sft-worker --join-token-file)");
  }
  if (!fits) {
    return PermissionDenied(fmt::format("{} may not call {}", who.Title(), call.method));
  }
  if (who.kind == Kind::kUser && who.Best() < call.rule->role) {
    return NeedsRole(who, call.rule->role, IsValidLabel(project) ? project : "");
  }
  return absl::OkStatus();
}

// As Identify, of a call that begins.
absl::Status Begin(Call& call, const std::string& project = "") {
  SFT_RETURN_IF_ERROR(Identify(call, project));
  // The local user is everybody on the machine.
  const Principal& who = call.principal;
  return CountStream(call, who.Title(), who.local ? Gate::kMaxStreams : Gate::kMaxStreamsOfOne);
}

// A data set belongs to each project that has uploaded it.
absl::Status AdmitDataset(const Call& call, const std::string& sha256) {
  const Principal& who = call.principal;
  absl::Status refusal = store::NoDataset(sha256);
  const absl::Status found = call.gate->store().Read([&](Database& db) -> absl::Status {
    for (const auto& [project, role] : who.roles) {
      SFT_ASSIGN_OR_RETURN(const bool owns, store::OwnsDataset(db, project, sha256));
      if (!owns || role == Role::kNone) continue;
      refusal =
          role < call.rule->role ? NeedsRole(who, call.rule->role, project) : absl::OkStatus();
      if (refusal.ok()) break;
    }
    return absl::OkStatus();
  });
  return found.ok() ? refusal : found;
}

absl::Status AdmitNamed(Call& call, const std::string& name) {
  // As a resource is named, and as what is stored is.
  constexpr std::string_view kArtifacts = "artifacts/",
                             kArtifact = "artifact:", kDataset = "dataset:", kBackup = "backup:";
  const Principal& who = call.principal;
  call.named = name;
  if (who.admin) return absl::OkStatus();
  if (name.starts_with(kBackup)) return NeedsRole(who, Role::kAdmin, "");
  if (name.starts_with(kDataset)) return AdmitDataset(call, name.substr(kDataset.size()));
  std::string& project = call.project;
  absl::Status hidden;
  const absl::Status found = call.gate->store().Read([&](Database& db) -> absl::Status {
    const bool stored = name.starts_with(kArtifact);
    if (stored || name.starts_with(kArtifacts)) {
      const std::string id = name.substr(stored ? kArtifact.size() : kArtifacts.size());
      hidden = store::NoArtifact(id);
      SFT_ASSIGN_OR_RETURN(project, store::ProjectOfArtifact(db, id));
      return absl::OkStatus();
    }
    SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
    hidden = store::NoJob(ref.id);
    SFT_ASSIGN_OR_RETURN(project, store::ProjectOfJob(db, ref.id));
    return absl::OkStatus();
  });
  SFT_RETURN_IF_ERROR(found);
  if (who.RoleIn(project) == Role::kNone) return hidden;
  if (who.RoleIn(project) < call.rule->role) return NeedsRole(who, call.rule->role, project);
  return absl::OkStatus();
}

absl::Status AdmitProject(Call& call, const std::string& named) {
  const Principal& who = call.principal;
  const Role needed = call.rule->role;
  if (who.kind == Principal::Kind::kNode) return absl::OkStatus();
  if (!named.empty() && !IsValidLabel(named)) {
    return InvalidArgument(fmt::format("project \"{}\" is not a name", named.substr(0, 80)));
  }
  call.project = named;
  if (named.empty() && who.RoleIn(kDefaultProject) >= needed) call.project = kDefaultProject;
  if (call.project.empty()) {
    std::vector<std::string> fit;
    for (const auto& [project, role] : who.roles) {
      if (role >= needed) fit.push_back(project);
    }
    if (fit.size() > 1) {
      return InvalidArgument(
          fmt::format("{} may do this in several projects: name one of {} "
                      "(--project)",
                      who.Title(), fmt::join(fit, ", ")));
    }
    if (fit.size() == 1) call.project = fit.front();
  }
  if (who.RoleIn(call.project) >= needed) return absl::OkStatus();
  return NeedsRole(who, needed, call.project);
}

absl::Status AdmitMessage(Call& call, const google::protobuf::Message& request) {
  const Principal& who = call.principal;
  if (who.kind == Principal::Kind::kNode) {
    const std::string node = StringField(request, "node");
    if (!node.empty() && node != who.name) {
      return PermissionDenied(
          fmt::format("{} may not speak for node {}", who.Title(), node.substr(0, 80)));
    }
  }
  switch (call.rule->place) {
    case Place::kNamed:
      return AdmitNamed(call, StringField(request, "name"));
    case Place::kProject:
      return AdmitProject(call, StringField(request, "project"));
    case Place::kOwn: {
      const std::string project = StringField(request, "project");
      if (project.empty() || who.kind == Principal::Kind::kNode ||
          who.RoleIn(project) >= call.rule->role) {
        return absl::OkStatus();
      }
      return NeedsRole(who, call.rule->role, project);
    }
    default:
      return absl::OkStatus();
  }
}

// What the audit says that a request is about.
std::string ObjectOf(const Call& call, const google::protobuf::Message& request) {
  for (const char* field : {"name", "id", "sha256", "node", "user", "sweep"}) {
    std::string value = StringField(request, field);
    if (!value.empty()) return value.substr(0, 200);
  }
  const std::string project = call.project.empty() ? StringField(request, "project") : call.project;
  return project.empty() ? "" : "projects/" + project.substr(0, 80);
}

grpc::Status Conclude(Call& call, const absl::Status& status, std::string object) {
  call.object = std::move(object);
  if (call.rule != nullptr && call.rule->change && !call.principal.name.empty()) {
    AuditScope::Begin(RecordOf(call));
  }
  return rpc::ToGrpc(status);
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

void TellLarge(const Call& call, const google::protobuf::Message& request) {
  const size_t bytes = request.ByteSizeLong();
  if (bytes < kLargeRequest) return;
  const std::string who = call.principal.Title(), method = ShownMethod(call.method);
  if (!call.gate->IsNews(fmt::format("large {} {}", who, method))) return;
  spdlog::info("{} calls {} with {} bytes, from {}", who, method, bytes,
               PeerOf(call.context->peer()));
}

grpc::Status NoCall() {
  AuditScope::End();
  return {grpc::StatusCode::UNAUTHENTICATED, "the call has no principal"};
}

}  // namespace

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
PrincipalInterceptors(Gate& gate) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<Factory>(gate));
  return creators;
}

std::shared_ptr<grpc::AuthMetadataProcessor> MakeAuthenticator(Gate& gate) {
  return std::make_shared<Authenticator>(gate);
}

grpc::Status Admit(const grpc::ServerContextBase& context, const google::protobuf::Message& request,
                   const google::protobuf::Message* whole) {
  const google::protobuf::Message& sent = whole == nullptr ? request : *whole;
  Call* const call = CallOf(context);
  if (call == nullptr) return NoCall();
  AuditScope::End();  // of a call on this thread whose end was not seen
  absl::Status status = Begin(*call, StringField(request, "project"));
  if (status.ok()) status = CheckKnownValues(sent);
  if (status.ok()) status = AdmitMessage(*call, request);
  if (status.ok()) status = CheckShown(request);
  if (status.ok() && !call->streams) TellLarge(*call, sent);
  grpc::Status answer = Conclude(*call, status, ObjectOf(*call, request));
  if (answer.ok() && ChangesNothing(request)) AuditScope::End();
  return answer;
}

grpc::Status Admit(const grpc::ServerContextBase& context) {
  Call* const call = CallOf(context);
  if (call == nullptr) return NoCall();
  AuditScope::End();
  return Conclude(*call, Begin(*call), "");
}

grpc::Status AdmitSession(Gate& gate, const grpc::ServerContextBase& context, Principal& caller) {
  Call call{.gate = &gate, .context = &context, .method = kSession, .rule = FindRule(kSession)};
  const absl::Status status = Identify(call);
  if (!status.ok()) Record(call, rpc::ToGrpc(status));
  caller = std::move(call.principal);
  return rpc::ToGrpc(status);
}

grpc::Status AdmitBlob(const grpc::ServerContextBase& context, const std::string& sha256) {
  Call* const call = CallOf(context);
  if (call == nullptr) return NoCall();
  const Principal& who = call->principal;
  if (who.admin) return grpc::Status::OK;
  bool allowed = false;
  const absl::Status read = call->gate->store().Read([&](Database& db) -> absl::Status {
    if (who.kind == Principal::Kind::kNode) {
      SFT_ASSIGN_OR_RETURN(allowed, store::NodeNeedsBlob(db, who.name, sha256));
      return absl::OkStatus();
    }
    for (const auto& [project, role] : who.roles) {
      if (allowed) break;
      SFT_ASSIGN_OR_RETURN(allowed, store::OwnsDataset(db, project, sha256));
    }
    return absl::OkStatus();
  });
  if (!read.ok() || allowed) return rpc::ToGrpc(read);
  return rpc::ToGrpc(
      NotFound(fmt::format("no blob {}: it was not uploaded", sha256.substr(0, 80))));
}

grpc::Status AdmitStill(const grpc::ServerContextBase& context) {
  Call* const call = CallOf(context);
  if (call == nullptr) return NoCall();
  if (const absl::Status known = Identify(*call); !known.ok()) return rpc::ToGrpc(known);
  const Principal& who = call->principal;
  if (who.kind != Principal::Kind::kUser || who.admin) return grpc::Status::OK;
  if (call->project.empty()) {
    // Who was an admin has seen it whatever its project.
    return call->named.empty() ? grpc::Status::OK : rpc::ToGrpc(AdmitNamed(*call, call->named));
  }
  if (who.RoleIn(call->project) >= call->rule->role) return grpc::Status::OK;
  return rpc::ToGrpc(NeedsRole(who, call->rule->role, call->project));
}

const Principal& CallerOf(const grpc::ServerContextBase& context) {
  static const Principal kNobody;
  const Call* const call = CallOf(context);
  return call == nullptr ? kNobody : call->principal;
}

std::string PrincipalOf(const grpc::ServerContextBase& context) {
  return CallerOf(context).Title();
}

std::string ProjectOf(const grpc::ServerContextBase& context) {
  const Call* const call = CallOf(context);
  return call == nullptr ? "" : call->project;
}

std::optional<std::vector<std::string>> ProjectsWith(const Principal& principal, Role least) {
  if (principal.admin) return std::nullopt;
  std::vector<std::string> projects;
  for (const auto& [project, role] : principal.roles) {
    if (role >= least) projects.push_back(project);
  }
  return projects;
}

std::optional<std::vector<std::string>> VisibleTo(const Principal& principal) {
  return ProjectsWith(principal, Role::kViewer);
}

}  // namespace sft::server
