#include "common/hub/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/hub/model_name.h"
#include "common/hub/patience.h"
#include "common/io/sha256.h"

namespace sft::hub {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What is asked of the hub, and how an error names it.
struct Hub::Question {
  std::string id;
  std::string url;
  std::string method = "GET";
  std::string what;      // "config.json of Qwen/Qwen3-8B"
  std::string revision;  // for the error alone
  int64_t offset = 0;
  // A HEAD ends at the first answer that says what the file is: the CDN knows nothing of it.
  bool follows_everywhere = true;
};

namespace {

constexpr size_t kMaxListing = 64 << 20;
constexpr size_t kMaxAnswer = 4 << 20;
constexpr int kMaxPages = 1000;
constexpr int kMaxRedirects = 10;
// Limit on the size of a repository, all files together: no disk holds more.
constexpr int64_t kMaxBytes = int64_t{1} << 50;

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// How a store answers for a signed address whose time is over: the hub is asked for another.
bool IsExpired(int status) {
  return status == 401 || status == 403 || status == 404 || status == 410;
}

// The URL of the next page in a Link header; empty: this was the last.
std::string NextPage(const HttpResponse& response, std::string_view url) {
  const std::string_view link = response.Header("link");
  const size_t begin = link.find('<'), end = link.find('>');
  if (begin == link.npos || end == link.npos || link.find("rel=\"next\"", end) == link.npos) {
    return "";
  }
  return Follow(url, link.substr(begin + 1, end - begin - 1));
}

// Less than io::IsSafeRelative asks: a repository may hold files with a backslash in their names,
// which jobs do not need.
bool HasSoundPath(std::string_view path) {
  while (true) {
    const size_t end = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, end);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != part.npos) return false;
    if (end == path.size()) return true;
    path.remove_prefix(end + 1);
  }
}

// Whole numbers alone: what is written as a fraction, or too large for the type, is no size.
int64_t SizeOf(const nlohmann::json& entry, int64_t otherwise) {
  const auto size = entry.find("size");
  if (size == entry.end()) return otherwise;
  return size->is_number_integer() ? size->get<int64_t>() : -1;
}

bool AddFile(const nlohmann::json& entry, std::vector<HubFile>& files) {
  if (!entry.is_object() || entry.value("type", "") != "file") return true;
  HubFile file;
  file.path = entry.value("path", "");
  file.size = SizeOf(entry, -1);
  file.blob_id = entry.value("oid", "");
  if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
    file.lfs_sha256 = lfs->value("oid", "");
    if (file.lfs_sha256.empty()) return false;
    file.size = SizeOf(*lfs, file.size);
  }
  if (const auto xet = entry.find("xetHash"); xet != entry.end() && xet->is_string()) {
    file.xet_hash = *xet;
  }
  files.push_back(std::move(file));
  return true;
}

// nlohmann's value() throws for another type of value.
bool TryAddFile(const nlohmann::json& entry, std::vector<HubFile>& files) {
  try {
    return AddFile(entry, files);
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

}  // namespace

bool AreSound(const std::vector<HubFile>& files) {
  int64_t left = kMaxBytes;
  return std::all_of(files.begin(), files.end(), [&](const HubFile& file) {
    if (file.size < 0 || file.size > left) return false;
    left -= file.size;
    return HasSoundPath(file.path) && IsCommit(file.blob_id) &&
           (file.lfs_sha256.empty() || io::IsSha256Hex(file.lfs_sha256));
  });
}

std::string WithoutQuery(std::string_view url) {
  const std::string origin = OriginOf(url);
  const size_t scheme = url.find("://");
  const size_t path = url.find('/', scheme == url.npos ? 0 : scheme + 3);
  if (path == url.npos) return origin;
  return origin + std::string(url.substr(path, url.find_first_of("?#", path) - path));
}

absl::StatusOr<HttpResponse> Hub::Once(const Question& question) const {
  HttpRequest request{question.method, question.url, {{"Accept-Encoding", "identity"}}};
  const std::string first = OriginOf(question.url);
  if (first.empty()) {
    return FailedPrecondition(
        fmt::format("{} is no address of a hub: it begins with https://", options_.endpoint));
  }
  if (question.offset > 0) {
    request.headers.emplace_back("Range", fmt::format("bytes={}-", question.offset));
  }
  for (int redirects = 0;; ++redirects) {
    HttpRequest sent = request;
    // Whoever the hub sends us to gets no token.
    if (!options_.token.empty() && OriginOf(sent.url) == first) {
      sent.headers.emplace_back("Authorization", "Bearer " + options_.token);
    }
    absl::StatusOr<HttpResponse> response = http_.Send(sent);
    if (!response.ok()) {
      return Annotate(response.status(),
                      fmt::format("{}: {}", question.what, WithoutQuery(sent.url)));
    }
    if (OriginOf(request.url) != first && IsExpired(response->status)) {
      return Unavailable(
          fmt::format("{}: {} answers {}: the address that the hub gave is not good, "
                      "or no longer",
                      question.what, WithoutQuery(request.url), response->status));
    }
    const std::string_view location = response->Header("location");
    if (!IsRedirect(response->status) || location.empty()) return response;
    const std::string next = Follow(request.url, location);
    const std::string origin = OriginOf(next);
    if (origin.empty()) {
      return FailedPrecondition(
          fmt::format("{}: the hub leads to an address that is not asked: it is none of https, or "
                      "has a user, a backslash, a space or a control character in it",
                      question.what));
    }
    if (origin != first && !question.follows_everywhere) return response;
    if (first.starts_with("https:") && !origin.starts_with("https:")) {
      return FailedPrecondition(fmt::format("{}: the hub leads to {}, which is not asked",
                                            question.what, WithoutQuery(next)));
    }
    if (redirects == kMaxRedirects) {
      return FailedPrecondition(
          fmt::format("{}: the hub leads on more than {} times", question.what, kMaxRedirects));
    }
    request.url = next;
  }
}

absl::StatusOr<HttpResponse> Hub::Ask(const Question& question, const StopCheck& stop) const {
  SFT_ASSIGN_OR_RETURN(HttpResponse response, AskPatiently({.clock = clock_,
                                                            .endpoint = options_.endpoint,
                                                            .what = question.what,
                                                            .patience = options_.patience,
                                                            .on_wait = options_.on_wait},
                                                           stop, [&] { return Once(question); }));
  if (response.status < 400 || response.status == 416) return response;
  return Explain(question, response);
}

absl::Status Hub::ExplainMissing(const Question& question) const {
  if (options_.token.empty()) {
    return NotFound(
        fmt::format("{} has no model {}, or shows it only with a token: look at the name, or give "
                    "a token that may read it (docs/operations.md, models)",
                    options_.endpoint, question.id));
  }
  const auto who = Once({.id = question.id,
                         .url = options_.endpoint + "/api/whoami-v2",
                         .what = "the token's owner"});
  if (who.ok() && (who->status == 401 || who->status == 403)) {
    return PermissionDenied(
        fmt::format("{} refuses the token that was given for it: it is wrong, or was revoked",
                    options_.endpoint));
  }
  return NotFound(fmt::format("{} has no model {} that the owner of the token may see",
                              options_.endpoint, question.id));
}

absl::Status Hub::Explain(const Question& question, const HttpResponse& response) const {
  const std::string code(response.Header("x-error-code"));
  const int status = response.status;
  if (code == "GatedRepo") {
    return PermissionDenied(
        fmt::format("model {} is gated: accept its terms at {}/{} with the account {}", question.id,
                    options_.endpoint, question.id,
                    options_.token.empty()
                        ? "that you make a token of, and give that token (docs/operations.md, "
                          "models)"
                        : "of the token that was given"));
  }
  if (code == "DisabledRepo") {
    return PermissionDenied(fmt::format("the hub has disabled model {}", question.id));
  }
  if (code == "RevisionNotFound") {
    return NotFound(fmt::format("model {} has no revision \"{}\"", question.id, question.revision));
  }
  if (code == "EntryNotFound") return NotFound(fmt::format("there is no {}", question.what));
  if (code == "RepoNotFound" || status == 401 || (status == 404 && code.empty())) {
    return ExplainMissing(question);
  }
  const std::string_view said = response.Header("x-error-message");
  return status == 403
             ? PermissionDenied(fmt::format("{}: the hub answers 403 {}", question.what, said))
             : FailedPrecondition(
                   fmt::format("{}: the hub answers {} {}", question.what, status, said));
}

absl::StatusOr<std::string> Hub::ReadAll(const Question& question, size_t most,
                                         const StopCheck& stop) const {
  // A body may break where its head came.
  for (int tries = 0;; ++tries) {
    SFT_ASSIGN_OR_RETURN(const HttpResponse response, Ask(question, stop));
    absl::StatusOr<std::string> text = ReadBody(*response.body, most);
    if (text.ok() || !absl::IsUnavailable(text.status()) || tries == 4) {
      if (text.ok()) return text;
      return Annotate(text.status(), question.what);
    }
    clock_.Sleep(Jittered(milliseconds(500) * (1 << tries)));
  }
}

absl::StatusOr<std::string> Hub::Greet(const StopCheck& stop) const {
  const Question question{.url = options_.endpoint + "/api/whoami-v2", .what = "the token's owner"};
  const absl::StatusOr<HttpResponse> response = Once(question);
  if (!response.ok()) return response.status();
  if (stop && stop()) return Aborted("stopped");
  if (response->status == 401 || response->status == 403) {
    if (options_.token.empty()) return std::string();
    return PermissionDenied(fmt::format("{} refuses the token", options_.endpoint));
  }
  if (response->status != 200) {
    return Unavailable(fmt::format("{} answers {}", options_.endpoint, response->status));
  }
  SFT_ASSIGN_OR_RETURN(const std::string text, ReadBody(*response->body, kMaxAnswer));
  const nlohmann::json owner = ParseJson(text);
  const auto name = owner.is_object() ? owner.find("name") : owner.end();
  const bool named = owner.is_object() && name != owner.end() && name->is_string();
  return named ? name->get<std::string>() : std::string();
}

absl::StatusOr<std::string> Hub::Resolve(const std::string& id, const std::string& revision,
                                         const StopCheck& stop) const {
  const std::string named = revision.empty() ? "main" : revision;
  const Question question{
      .id = id,
      .url = fmt::format("{}/api/models/{}/revision/{}", options_.endpoint, id, EscapedPart(named)),
      .what = fmt::format("model {}", id),
      .revision = named};
  SFT_ASSIGN_OR_RETURN(const std::string text, ReadAll(question, kMaxAnswer, stop));
  const nlohmann::json answer = ParseJson(text);
  const auto sha = answer.is_object() ? answer.find("sha") : answer.end();
  if (sha == answer.end() || !sha->is_string() || !IsCommit(sha->get<std::string>())) {
    return FailedPrecondition(fmt::format("{} is no model hub: its answer for {} names no commit",
                                          options_.endpoint, id));
  }
  return sha->get<std::string>();
}

absl::StatusOr<std::vector<HubFile>> Hub::List(const std::string& id, const std::string& commit,
                                               const StopCheck& stop) const {
  Question question{.id = id,
                    .url = fmt::format("{}/api/models/{}/tree/{}?recursive=true&expand=false",
                                       options_.endpoint, id, commit),
                    .what = fmt::format("the files of {}", id),
                    .revision = commit};
  const std::string first = OriginOf(question.url);
  std::vector<HubFile> files;
  for (int page = 0; page < kMaxPages; ++page) {
    std::string text;
    SFT_ASSIGN_OR_RETURN(const HttpResponse response, Ask(question, stop));
    SFT_ASSIGN_OR_RETURN(text, ReadBody(*response.body, kMaxListing));
    const nlohmann::json list = ParseJson(text);
    bool sound = list.is_array();
    for (size_t i = 0; sound && i < list.size(); ++i) sound = TryAddFile(list[i], files);
    if (!sound || !AreSound(files)) {
      return FailedPrecondition(
          fmt::format("{}: the hub's listing cannot be understood", question.what));
    }
    question.url = NextPage(response, question.url);
    if (question.url.empty()) return files;
    if (OriginOf(question.url) != first) {
      return FailedPrecondition(
          fmt::format("{}: the hub's listing goes on at {}, which is not asked", question.what,
                      WithoutQuery(question.url)));
    }
  }
  return ResourceExhausted(fmt::format("{}: more than {} pages", question.what, kMaxPages));
}

absl::Status Hub::Check(const std::string& id, const std::string& commit, const std::string& path,
                        const StopCheck& stop) const {
  return Ask({.id = id,
              .url =
                  fmt::format("{}/{}/resolve/{}/{}", options_.endpoint, id, commit, Escaped(path)),
              .method = "HEAD",
              .what = fmt::format("{} of {}", path, id),
              .revision = commit,
              .follows_everywhere = false},
             stop)
      .status();
}

absl::StatusOr<std::string> Hub::Read(const std::string& id, const std::string& commit,
                                      const std::string& path, size_t most,
                                      const StopCheck& stop) const {
  return ReadAll(
      {.id = id,
       .url = fmt::format("{}/{}/resolve/{}/{}", options_.endpoint, id, commit, Escaped(path)),
       .what = fmt::format("{} of {}", path, id),
       .revision = commit},
      most, stop);
}

absl::StatusOr<HttpResponse> Hub::Open(const std::string& id, const std::string& commit,
                                       const std::string& path, int64_t offset,
                                       const StopCheck& stop) const {
  return Ask(
      {.id = id,
       .url = fmt::format("{}/{}/resolve/{}/{}", options_.endpoint, id, commit, Escaped(path)),
       .what = fmt::format("{} of {}", path, id),
       .revision = commit,
       .offset = offset},
      stop);
}

}  // namespace sft::hub
