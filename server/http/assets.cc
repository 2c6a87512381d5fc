#include "server/http/assets.h"

#include <algorithm>
#include <optional>

#include "common/io/file.h"
#include "server/http/percent.h"

namespace sft::server {
namespace {

// A text from where it begins to where it ends.
struct Bytes {
  const char* begin;
  const char* end;
  std::string_view text() const { return {begin, static_cast<size_t>(end - begin)}; }
};

struct Embedded {
  const char* name;
  const char* type;
  Bytes plain, gzip;
};

}  // namespace

#include "assets.inc"

namespace {

constexpr std::string_view kShell = "index.html";
// What they are called by browsers that nobody told of them.
constexpr std::string_view kIcon = "/favicon.ico", kIconFile = "icon.svg";
constexpr int64_t kMostBytes = 16 << 20;

const Embedded* Find(std::string_view name) {
  const auto found = std::ranges::find(kEmbedded, name, &Embedded::name);
  return found == std::end(kEmbedded) ? nullptr : found;
}

std::string TypeOf(std::string_view name) {
  const std::string_view ending = name.substr(std::min(name.size(), name.rfind('.')));
  if (ending == ".html") return "text/html; charset=utf-8";
  if (ending == ".js") return "text/javascript; charset=utf-8";
  if (ending == ".css") return "text/css; charset=utf-8";
  if (ending == ".svg") return "image/svg+xml";
  return ending == ".png" ? "image/png" : "application/octet-stream";
}

std::optional<HttpResponse> FromFolder(const std::string& folder, std::string_view name) {
  absl::StatusOr<std::string> content = io::ReadFile(folder + "/" + std::string(name), kMostBytes);
  if (!content.ok()) return std::nullopt;
  return HttpResponse{200, TypeOf(name), *std::move(content), {{"Cache-Control", "no-cache"}}};
}

std::optional<HttpResponse> FromProgram(std::string_view name, bool gzip) {
  const std::string_view version = kAssetsVersion;
  const bool by_version = name.starts_with(version) && name.substr(version.size()).starts_with("/");
  const Embedded* const file = Find(by_version ? name.substr(version.size() + 1) : name);
  if (file == nullptr) return std::nullopt;
  HttpResponse response{200, file->type, std::string((gzip ? file->gzip : file->plain).text()), {}};
  response.fields.emplace_back("Cache-Control",
                               by_version ? "public, max-age=31536000, immutable" : "no-cache");
  response.fields.emplace_back("Vary", "Accept-Encoding");
  if (gzip) response.fields.emplace_back("Content-Encoding", "gzip");
  return response;
}

// Whether gzip is among the codings of the field, and not excluded.
bool TakesGzip(std::string_view field) {
  const size_t at = field.find("gzip");
  if (at == field.npos) return false;
  const std::string_view rest = field.substr(at, field.find(',', at) - at);
  return rest.find("q=0") == rest.npos || rest.find("q=0.") != rest.npos;
}

}  // namespace

void Assets::Answer(HttpStream& stream) const {
  const HttpRequest& request = stream.request();
  if (request.method != "GET" && request.method != "HEAD") {
    return stream.Respond(
        {405, HttpResponse().content_type, "only GET is served here\n", {{"Allow", "GET, HEAD"}}});
  }
  const std::string path = PercentDecoded(request.path).value_or("/");
  std::string_view name = kShell;
  if (path.starts_with(kRoot)) name = std::string_view(path).substr(kRoot.size());
  if (path == kIcon) name = kIconFile;
  const auto response = folder_.empty()
                            ? FromProgram(name, TakesGzip(request.Field("accept-encoding")))
                            : FromFolder(folder_, name);
  if (response.has_value()) return stream.Respond(*response);
  stream.Respond({404, HttpResponse().content_type, "there is no such file\n", {}});
}

}  // namespace sft::server
