#include "common/hub/push.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/json.h"
#include "common/hub/patience.h"
#include "common/hub/push_answers.h"
#include "common/io/paths.h"

namespace sft::hub {

using nlohmann::json;

namespace {

constexpr size_t kMostAnswer = 4 << 20;
constexpr size_t kFilesAtOnce = 256;      // that the hub is asked about
constexpr int64_t kSampleBytes = 512;     // by which it tells text from other files
constexpr int64_t kMostSmall = 16 << 20;  // of a file that goes with the commit

// A hub that cannot be reached at all is soon told from one that is busy for a moment.
constexpr Nanos kFirstPatience = std::chrono::seconds(15);

absl::Status CheckFiles(const std::vector<PushFile>& files) {
  std::set<std::string_view> seen;
  for (const PushFile& file : files) {
    const bool sound = io::IsSafeRelative(file.path) && file.size >= 0 &&
                       io::IsSha256Hex(file.sha256) && seen.insert(file.path).second;
    if (!sound) return InvalidArgument(fmt::format("\"{}\" cannot be pushed", file.path));
  }
  return files.empty() ? InvalidArgument("there is nothing to push") : absl::OkStatus();
}

}  // namespace

std::string HubPush::ApiUrl(const std::string& rest) const {
  return fmt::format("{}/api/models/{}{}", options_.hub.endpoint, id_, rest);
}

absl::StatusOr<HttpResponse> HubPush::Patiently(
    const std::string& what, const std::string& url,
    const std::function<absl::StatusOr<HttpResponse>()>& send, Nanos most) const {
  return AskPatiently({.clock = clock_,
                       .endpoint = WithoutQuery(url),
                       .what = what,
                       .patience = std::min(options_.hub.patience, most),
                       .on_wait = options_.hub.on_wait},
                      stop_, [&]() -> absl::StatusOr<HttpResponse> {
                        absl::StatusOr<HttpResponse> sent = send();
                        if (sent.ok()) return sent;
                        return Annotate(sent.status(),
                                        fmt::format("{}: {}", what, WithoutQuery(url)));
                      });
}

absl::Status HubPush::Greet() const {
  const HttpRequest request{.url = options_.hub.endpoint + "/api/whoami-v2",
                            .headers = {{"Authorization", "Bearer " + options_.hub.token}}};
  SFT_ASSIGN_OR_RETURN(
      const HttpResponse response,
      Patiently(
          "the token's owner", request.url, [&] { return http_.Send(request); }, kFirstPatience));
  if (response.status != 401 && response.status != 403) return absl::OkStatus();
  return Refused("the token's owner", {.status = 401});
}

absl::StatusOr<HubPush::Answer> HubPush::Ask(const std::string& method, const std::string& url,
                                             const std::string& what, const std::string& body,
                                             const char* type) const {
  HttpRequest request{.method = method, .url = url, .headers = {{"Accept-Encoding", "identity"}}};
  if (std::string_view(type) == kLfs) request.headers.emplace_back("Accept", kLfs);
  if (!body.empty()) request.headers.emplace_back("Content-Type", type);
  // The store's addresses are signed, and get no token.
  if (OriginOf(url) == OriginOf(options_.hub.endpoint)) {
    request.headers.emplace_back("Authorization", "Bearer " + options_.hub.token);
  }
  request.body = body;
  SFT_ASSIGN_OR_RETURN(const HttpResponse response,
                       Patiently(what, url, [&] { return http_.Send(request); }));
  Answer answer{.status = response.status,
                .code = std::string(response.Header("x-error-code")),
                .said = std::string(response.Header("x-error-message"))};
  SFT_ASSIGN_OR_RETURN(answer.text, ReadBody(*response.body, kMostAnswer));
  if (answer.said.empty()) answer.said = TextOf(ParseJson(answer.text), "error");
  return answer;
}

absl::Status HubPush::Refused(const std::string& what, const Answer& answer) const {
  const std::string said = answer.said.empty() ? "" : ": " + answer.said;
  if (answer.status == 401) {
    return PermissionDenied(fmt::format(
        "{} refuses the token: it is wrong, has expired or was revoked", options_.hub.endpoint));
  }
  if (answer.status == 403) {
    return PermissionDenied(
        fmt::format("{}: the token may not write to {}; it needs the right to write there, and "
                    "the repository must not be one that is read alone{}",
                    what, id_, said));
  }
  if (answer.status == 404) {
    return NotFound(fmt::format("{}: {} has no model {} that the owner of the token may see{}",
                                what, options_.hub.endpoint, id_, said));
  }
  if (answer.status >= 300 && answer.status < 400) {
    return FailedPrecondition(fmt::format(
        "{}: the hub leads elsewhere: was {} renamed? push to its new name", what, id_));
  }
  return FailedPrecondition(fmt::format("{}: the hub answers {}{}", what, answer.status, said));
}

absl::Status HubPush::FindRepository(const PushTarget& target, Pushed& pushed) const {
  const auto look = [&]() -> absl::StatusOr<Answer> {
    return Ask("GET", ApiUrl(""), "model " + id_, "");
  };
  SFT_ASSIGN_OR_RETURN(Answer answer, look());
  if (answer.status == 404 || (answer.status == 401 && answer.code == "RepoNotFound")) {
    const size_t slash = id_.find('/');
    const json asked = {{"type", "model"},
                        {"organization", id_.substr(0, slash)},
                        {"name", id_.substr(slash + 1)},
                        {"private", !target.is_public}};
    const std::string what = fmt::format("making {}", id_);
    SFT_ASSIGN_OR_RETURN(const Answer made, Ask("POST", options_.hub.endpoint + "/api/repos/create",
                                                what, DumpJson(asked)));
    // 409: somebody has made it meanwhile.
    if (!IsGood(made.status) && made.status != 409) return Refused(what, made);
    pushed.is_new = made.status != 409;
    SFT_ASSIGN_OR_RETURN(answer, look());
  }
  if (!IsGood(answer.status)) return Refused("model " + id_, answer);
  const json model = ParseJson(answer.text);
  const json& is_private = Child(model, "private");
  pushed.is_private = is_private.is_boolean() && is_private.get<bool>();
  return absl::OkStatus();
}

absl::StatusOr<std::string> HubPush::FindBranch() const {
  absl::StatusOr<std::string> commit = hub_.Resolve(id_, branch_, stop_);
  if (!absl::IsNotFound(commit.status()) || branch_ == "main") return commit;
  const std::string what = fmt::format("making the branch {} of {}", branch_, id_);
  SFT_ASSIGN_OR_RETURN(const Answer made,
                       Ask("POST", ApiUrl("/branch/" + EscapedPart(branch_)), what, "{}"));
  if (!IsGood(made.status) && made.status != 409) return Refused(what, made);
  return hub_.Resolve(id_, branch_, stop_);
}

absl::StatusOr<std::string> HubPush::ReadBeginning(const PushFile& file, int64_t most) const {
  std::string text(std::min(file.size, most), '\0');
  if (text.empty()) return text;
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<HttpSource> source, options_.open(file, 0));
  for (size_t at = 0; at < text.size();) {
    SFT_ASSIGN_OR_RETURN(const size_t count, source->Read(text.data() + at, text.size() - at));
    if (count == 0) return DataLoss(fmt::format("{} ends too early", file.path));
    at += count;
  }
  return text;
}

absl::StatusOr<std::vector<bool>> HubPush::AskWhichAreLarge(
    const std::vector<PushFile>& files) const {
  std::map<std::string, bool> large;
  const std::string what = fmt::format("what {} makes of the files", options_.hub.endpoint);
  for (size_t first = 0; first < files.size(); first += kFilesAtOnce) {
    json asked = json::array();
    for (size_t i = first; i < std::min(files.size(), first + kFilesAtOnce); ++i) {
      SFT_ASSIGN_OR_RETURN(const std::string sample, ReadBeginning(files[i], kSampleBytes));
      asked.push_back({{"path", files[i].path},
                       {"sample", absl::Base64Escape(sample)},
                       {"size", files[i].size}});
    }
    SFT_ASSIGN_OR_RETURN(const Answer answer,
                         Ask("POST", ApiUrl("/preupload/" + EscapedPart(branch_)), what,
                             DumpJson(json{{"files", std::move(asked)}})));
    if (!IsGood(answer.status)) return Refused(what, answer);
    const json said = ParseJson(answer.text);
    const json& entries = Child(said, "files");
    for (size_t i = 0; entries.is_array() && i < entries.size(); ++i) {
      const json& entry = entries[i];
      if (Child(entry, "shouldIgnore") == json(true)) {
        return FailedPrecondition(
            fmt::format("the .gitignore of {} leaves out {}: take that line out of it, or push to "
                        "another repository",
                        id_, TextOf(entry, "path")));
      }
      large[TextOf(entry, "path")] = TextOf(entry, "uploadMode") == "lfs";
    }
  }
  std::vector<bool> list;
  for (const PushFile& file : files) {
    const auto found = large.find(file.path);
    if (found == large.end()) {
      return FailedPrecondition(
          fmt::format("{} is not pushed: the hub's answer does not say how", file.path));
    }
    // A store takes no empty file.
    list.push_back(found->second && file.size > 0);
    if (!list.back() && file.size > kMostSmall) {
      return FailedPrecondition(
          fmt::format("the hub wants {} ({} bytes) within the commit, where it is too large",
                      file.path, file.size));
    }
  }
  return list;
}

absl::StatusOr<std::string> HubPush::CommitText(const std::vector<PushFile>& files,
                                                const std::vector<bool>& large,
                                                const PushTarget& target,
                                                const std::string& parent) const {
  std::string text =
      DumpJson(
          json{{"key", "header"},
               {"value",
                {{"summary", target.message}, {"description", ""}, {"parentCommit", parent}}}}) +
      "\n";
  int64_t small = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const PushFile& file = files[i];
    json line = {
        {"key", "lfsFile"},
        {"value",
         {{"path", file.path}, {"algo", "sha256"}, {"oid", file.sha256}, {"size", file.size}}}};
    if (!large[i]) {
      SFT_ASSIGN_OR_RETURN(const std::string bytes, ReadBeginning(file, file.size));
      if (io::Sha256Hex(bytes) != file.sha256) {
        return DataLoss(fmt::format(
            "{}: the bytes that were read have not the hash they were stored with", file.path));
      }
      small += file.size;
      line = {
          {"key", "file"},
          {"value",
           {{"path", file.path}, {"content", absl::Base64Escape(bytes)}, {"encoding", "base64"}}}};
    }
    if (small > 4 * kMostSmall) {
      return FailedPrecondition("the small files together are too large for one commit");
    }
    text += DumpJson(line) + "\n";
  }
  return text;
}

absl::Status HubPush::Verify(const std::vector<PushFile>& files, const std::string& commit) const {
  SFT_ASSIGN_OR_RETURN(const std::vector<HubFile> list, hub_.List(id_, commit, stop_));
  std::map<std::string_view, const HubFile*> there;
  for (const HubFile& file : list) there[file.path] = &file;
  for (const PushFile& file : files) {
    const auto found = there.find(file.path);
    const bool same =
        found != there.end() && found->second->size == file.size &&
        (found->second->lfs_sha256.empty() || found->second->lfs_sha256 == file.sha256);
    if (same) continue;
    return DataLoss(
        fmt::format("commit {} of {} has not the {} that was pushed", commit, id_, file.path));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> HubPush::Commit(const std::vector<PushFile>& files,
                                            const std::string& text,
                                            const std::string& parent) const {
  const std::string what = fmt::format("the commit to {} of {}", branch_, id_);
  const absl::StatusOr<Answer> answer =
      Ask("POST", ApiUrl("/commit/" + EscapedPart(branch_)), what, text, "application/x-ndjson");
  if (answer.ok() && IsGood(answer->status)) {
    const json made = ParseJson(answer->text);
    const std::string commit = TextOf(made, "commitOid");
    if (IsCommit(commit)) return commit;
    return FailedPrecondition(what + ": the hub's answer names no commit");
  }
  if (absl::IsAborted(answer.status())) return answer.status();
  const bool moved = answer.ok() && (answer->status == 412 || answer->status == 409);
  if (answer.ok() && !moved) return Refused(what, *answer);
  // The answer to a commit that was made may be what was lost.
  const absl::StatusOr<std::string> now = hub_.Resolve(id_, branch_, stop_);
  if (now.ok() && *now != parent && Verify(files, *now).ok()) return *now;
  if (!answer.ok()) return answer.status();
  return FailedPrecondition(
      fmt::format("{} has got another commit while this was pushed: push again; what the hub has "
                  "already is not sent again",
                  id_));
}

absl::StatusOr<Pushed> HubPush::Run(const std::vector<PushFile>& files, const PushTarget& target,
                                    const StopCheck& stop) {
  id_ = target.name.id;
  branch_ = target.name.revision.empty() ? "main" : target.name.revision;
  stop_ = stop;
  SFT_RETURN_IF_ERROR(CheckFiles(files));
  if (IsCommit(branch_)) {
    return InvalidArgument(fmt::format("{} is a commit: push to a branch", branch_));
  }
  SFT_RETURN_IF_ERROR(Greet());
  Pushed pushed;
  SFT_RETURN_IF_ERROR(FindRepository(target, pushed));
  SFT_ASSIGN_OR_RETURN(const std::string parent, FindBranch());
  SFT_ASSIGN_OR_RETURN(const std::vector<bool> large, AskWhichAreLarge(files));
  for (size_t i = 0; i < files.size(); ++i) {
    if (large[i]) SFT_RETURN_IF_ERROR(SendLarge(files[i], pushed));
  }
  SFT_ASSIGN_OR_RETURN(const std::string text, CommitText(files, large, target, parent));
  SFT_ASSIGN_OR_RETURN(pushed.commit, Commit(files, text, parent));
  SFT_RETURN_IF_ERROR(Verify(files, pushed.commit));
  pushed.url = fmt::format("{}/{}", options_.hub.endpoint, id_);
  if (branch_ != "main") pushed.url += "/tree/" + Escaped(branch_);
  return pushed;
}

}  // namespace sft::hub
