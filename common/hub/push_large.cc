#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/base/json.h"
#include "common/hub/push.h"
#include "common/hub/push_answers.h"

// How a push sends large files to the hub's store.

namespace sft::hub {

using nlohmann::json;

// A part of a large file, and where it goes.
struct HubPush::Part {
  std::string url;
  int64_t offset = 0;
  int64_t size = 0;
};

namespace {

constexpr int64_t kMostParts = 10000;
constexpr int kMostTries = 3;  // with new addresses for a file

// Bytes on their way: hashes and counts them, and ends when it is told to.
class CountedSource : public HttpSource {
 public:
  using Told = std::function<void(int64_t)>;
  CountedSource(HttpSource& from, io::Sha256& hash, const StopCheck& stop, Told told)
      : from_(from), hash_(hash), stop_(stop), told_(std::move(told)) {}
  absl::StatusOr<size_t> Read(char* data, size_t size) override {
    if (stop_ && stop_()) return Aborted("stopped");
    SFT_ASSIGN_OR_RETURN(const size_t count, from_.Read(data, size));
    hash_.Update(data, count);
    sent_ += static_cast<int64_t>(count);
    if (told_) told_(sent_);
    return count;
  }

 private:
  HttpSource& from_;
  io::Sha256& hash_;
  const StopCheck& stop_;
  const Told told_;
  int64_t sent_ = 0;
};

// The addresses of a file's parts; nothing where the hub's answer makes no sense.
template <typename Part>
std::optional<std::vector<Part>> PartsOf(const json& upload, const PushFile& file) {
  const json& header = Child(upload, "header");
  const json& chunk = Child(header, "chunk_size");
  if (chunk.is_null()) return std::vector<Part>{{TextOf(upload, "href"), 0, file.size}};
  int64_t size = 0;
  if (chunk.is_number_integer()) size = chunk.get<int64_t>();
  if (chunk.is_string())
    size = std::strtoll(chunk.get_ref<const std::string&>().c_str(), nullptr, 10);
  if (size < 1 || file.size / size >= kMostParts) return std::nullopt;
  std::map<int64_t, std::string> urls;
  for (const auto& [key, url] : header.items()) {
    const bool number =
        !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    if (number && url.is_string()) urls[std::stoll(key)] = url.template get<std::string>();
  }
  std::vector<Part> parts;
  for (const auto& [number, url] : urls) {
    const int64_t offset = static_cast<int64_t>(parts.size()) * size;
    if (number != static_cast<int64_t>(parts.size()) + 1 || offset >= file.size)
      return std::nullopt;
    parts.push_back({url, offset, std::min(size, file.size - offset)});
  }
  const int64_t wanted = (file.size + size - 1) / size;
  if (static_cast<int64_t>(parts.size()) != wanted) return std::nullopt;
  return parts;
}

}  // namespace

absl::StatusOr<std::string> HubPush::Put(const PushFile& file, const Part& part,
                                         io::Sha256& whole) const {
  const io::Sha256 before = whole;
  const std::string origin = OriginOf(part.url);
  const bool plain =
      OriginOf(options_.hub.endpoint).starts_with("https:") && !origin.starts_with("https:");
  if (origin.empty() || plain) {
    return FailedPrecondition(fmt::format("{}: the hub leads to {}, where nothing is sent",
                                          file.path, WithoutQuery(part.url)));
  }
  const auto send = [&]() -> absl::StatusOr<HttpResponse> {
    whole = before;
    SFT_ASSIGN_OR_RETURN(const std::unique_ptr<HttpSource> source,
                         options_.open(file, part.offset));
    CountedSource counted(*source, whole, stop_, [&](int64_t sent) {
      if (options_.on_sent) options_.on_sent(file, part.offset + sent);
    });
    HttpRequest request{.method = "PUT", .url = part.url};
    request.source = &counted;
    request.source_bytes = part.size;
    return http_.Send(request);
  };
  SFT_ASSIGN_OR_RETURN(const HttpResponse response, Patiently(file.path, part.url, send));
  if (IsGood(response.status)) return std::string(response.Header("etag"));
  // 403: the signed address is no longer good.
  return response.status == 403
             ? OutOfRange(fmt::format("{}: {} refuses the bytes (403)", file.path, origin))
             : FailedPrecondition(
                   fmt::format("{}: {} answers {}", file.path, origin, response.status));
}

absl::Status HubPush::SendParts(const PushFile& file, const std::vector<Part>& parts,
                                const std::string& complete) const {
  io::Sha256 hash;
  json done = json::array();
  for (const Part& part : parts) {
    SFT_ASSIGN_OR_RETURN(const std::string etag, Put(file, part, hash));
    done.push_back({{"partNumber", done.size() + 1}, {"etag", etag}});
    if (!complete.empty() && etag.empty()) {
      return FailedPrecondition(
          fmt::format("{}: the hub's store gives part {} no ETag", file.path, done.size()));
    }
  }
  if (hash.FinishHex() != file.sha256) {
    return DataLoss(
        fmt::format("{}: the bytes that were read have not the hash they were stored with; nothing "
                    "was pushed",
                    file.path));
  }
  if (complete.empty()) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const Answer answer,
                       Ask("POST", complete, file.path,
                           DumpJson(json{{"oid", file.sha256}, {"parts", done}}), kLfs));
  return IsGood(answer.status) ? absl::OkStatus() : Refused(file.path, answer);
}

absl::Status HubPush::SendLarge(const PushFile& file, Pushed& pushed) const {
  for (int tries = 1;; ++tries) {
    // Addresses are asked for when they are used: they are good for a while alone.
    const json asked = {{"operation", "upload"},
                        {"transfers", {"basic", "multipart"}},
                        {"objects", json::array({{{"oid", file.sha256}, {"size", file.size}}})},
                        {"hash_algo", "sha256"},
                        {"ref", {{"name", branch_}}}};
    SFT_ASSIGN_OR_RETURN(
        const Answer answer,
        Ask("POST", fmt::format("{}/{}.git/info/lfs/objects/batch", options_.hub.endpoint, id_),
            file.path, DumpJson(asked), kLfs));
    if (!IsGood(answer.status)) return Refused(file.path, answer);
    const json said = ParseJson(answer.text);
    const json& objects = Child(said, "objects");
    const json object = objects.is_array() && objects.size() == 1 ? objects[0] : json();
    if (const std::string error = TextOf(Child(object, "error"), "message"); !error.empty()) {
      return FailedPrecondition(fmt::format("the hub does not take {}: {}", file.path, error));
    }
    const json& actions = Child(object, "actions");
    if (TextOf(object, "oid") == file.sha256 && actions.is_null()) return absl::OkStatus();
    const json& upload = Child(actions, "upload");
    const bool in_parts = !Child(Child(upload, "header"), "chunk_size").is_null();
    const auto parts = PartsOf<Part>(upload, file);
    if (TextOf(object, "oid") != file.sha256 || TextOf(upload, "href").empty() || !parts) {
      return FailedPrecondition(
          fmt::format("{}: the hub's answer does not say where to send it", file.path));
    }
    const absl::Status sent =
        SendParts(file, *parts, in_parts ? TextOf(upload, "href") : std::string());
    if (absl::IsOutOfRange(sent) && tries < kMostTries) continue;
    if (!sent.ok()) return absl::IsOutOfRange(sent) ? PermissionDenied(Message(sent)) : sent;
    pushed.sent_bytes += file.size;
    const std::string verify = TextOf(Child(actions, "verify"), "href");
    if (verify.empty()) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(const Answer verified,
                         Ask("POST", verify, file.path,
                             DumpJson(json{{"oid", file.sha256}, {"size", file.size}}), kLfs));
    if (IsGood(verified.status)) return absl::OkStatus();
    return Annotate(Refused(file.path, verified), "the hub has not got all of it");
  }
}

}  // namespace sft::hub
