#include "common/hub/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/mutex.h"
#include "common/base/version.h"
#include "common/io/file.h"

// The other half of worker/engine/data/tokenizer/src/http.rs. The crate is the one of the tokenizer
// because a program can hold only one static library of Rust.
extern "C" {
struct SftHttpAgent;
struct SftHttpBody;
struct SftHttpResult {  // SftResult of lib.rs
  int32_t ok;
  const char* text;
  size_t text_size;
  const int32_t* ids;
  size_t ids_size;
  const uint32_t* starts;
  const uint32_t* ends;
  size_t spans_size;
  void* owner;
};
SftHttpResult sft_http_open(const char* options, size_t size, SftHttpAgent** out);
void sft_http_close(SftHttpAgent* agent);
SftHttpResult sft_http_send(const SftHttpAgent* agent, const char* request, size_t size,
                            int64_t (*fill)(void*, char*, size_t), void* context,
                            SftHttpBody** out);
SftHttpResult sft_http_read(SftHttpBody* body, char* buffer, size_t size, size_t* count);
void sft_http_body_close(SftHttpBody* body);
void sft_result_free(SftHttpResult* result);
}

namespace sft::hub {
namespace {

// Where distributions keep the authorities that they trust.
constexpr std::array<const char*, 4> kSystemAuthorities = {
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};

// The text of a call's result, or the error that it is.
absl::StatusOr<std::string> Take(SftHttpResult result) {
  const std::string text(result.text, result.text_size);
  const bool ok = result.ok != 0;
  sft_result_free(&result);
  if (ok) return text;
  constexpr std::string_view kPermanent = "permanent: ", kPassing = "passing: ";
  if (text.starts_with(kPermanent)) return FailedPrecondition(text.substr(kPermanent.size()));
  if (text.starts_with(kPassing)) return Unavailable(text.substr(kPassing.size()));
  return Internal(text);
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

// Host of a URL, without port and brackets.
std::string HostOf(std::string_view url) {
  std::string host = OriginOf(url);
  host = host.substr(std::min(host.size(), host.find("//") + 2));
  if (host.starts_with("[")) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

class RustBody : public HttpBody {
 public:
  explicit RustBody(SftHttpBody* body) : body_(body) {}
  ~RustBody() override { sft_http_body_close(body_); }
  absl::StatusOr<size_t> Read(char* data, size_t size) override {
    size_t count = 0;
    SFT_RETURN_IF_ERROR(Take(sft_http_read(body_, data, size, &count)).status());
    return count;
  }

 private:
  SftHttpBody* const body_;
};

// A text as what is sent.
class TextSource : public HttpSource {
 public:
  explicit TextSource(std::string_view text) : text_(text) {}
  absl::StatusOr<size_t> Read(char* data, size_t size) override {
    const size_t count = text_.copy(data, size);
    text_.remove_prefix(count);
    return count;
  }

 private:
  std::string_view text_;
};

// A source as the crate reads it; it knows no reasons, so they are kept here.
struct Filling {
  HttpSource& source;
  int64_t left = 0;
  absl::Status failed;

  static int64_t Fill(void* context, char* data, size_t size) {
    Filling& filling = *static_cast<Filling*>(context);
    const absl::StatusOr<size_t> count =
        filling.source.Read(data, std::min<size_t>(size, filling.left));
    if (!count.ok()) {
      filling.failed = count.status();
      return -1;
    }
    if (*count == 0 && filling.left > 0) {
      filling.failed = DataLoss("what is to be sent ends too early");
      return -1;
    }
    filling.left -= static_cast<int64_t>(*count);
    return static_cast<int64_t>(*count);
  }
};

class RustClient : public HttpClient {
 public:
  explicit RustClient(HttpOptions options) : options_(std::move(options)) {}
  ~RustClient() override {
    for (const auto& [proxy, agent] : agents_) sft_http_close(agent);
  }

  absl::StatusOr<HttpResponse> Send(const HttpRequest& request) override {
    SFT_ASSIGN_OR_RETURN(const SftHttpAgent* const agent,
                         AgentFor(ProxyFor(options_, request.url)));
    nlohmann::json asked = {
        {"method", request.method}, {"url", request.url}, {"headers", nlohmann::json::array()}};
    for (const auto& [name, value] : request.headers) asked["headers"].push_back({name, value});
    TextSource own(request.body);
    const bool streams = request.source != nullptr, has_body = streams || !request.body.empty();
    Filling filling{streams ? *request.source : own,
                    streams ? request.source_bytes : static_cast<int64_t>(request.body.size()),
                    {}};
    if (has_body) asked["headers"].push_back({"Content-Length", std::to_string(filling.left)});
    const std::string text = DumpJson(asked);
    SftHttpBody* body = nullptr;
    const absl::StatusOr<std::string> answer = Take(sft_http_send(
        agent, text.data(), text.size(), has_body ? &Filling::Fill : nullptr, &filling, &body));
    if (!filling.failed.ok()) {
      if (answer.ok()) sft_http_body_close(body);
      return filling.failed;
    }
    SFT_ASSIGN_OR_RETURN(const std::string head, answer);
    HttpResponse response;
    response.body = std::make_unique<RustBody>(body);
    const nlohmann::json json = ParseJson(head);
    if (!json.is_object()) return Unavailable("the answer's head is broken");
    response.status = json.value("status", 0);
    for (const auto& header : json.at("headers")) {
      response.headers.emplace_back(header.at(0).get<std::string>(),
                                    header.at(1).get<std::string>());
    }
    return response;
  }

  // An agent keeps connections, and knows one proxy.
  absl::StatusOr<const SftHttpAgent*> AgentFor(const std::string& proxy) {
    const MutexLock lock(mutex_);
    const auto known = agents_.find(proxy);
    if (known != agents_.end()) return known->second;
    const auto seconds = [](Nanos time) { return std::chrono::duration<double>(time).count(); };
    const std::string text =
        DumpJson(nlohmann::json{{"ca_file", options_.ca_file},
                                {"proxy", proxy},
                                {"connect_seconds", seconds(options_.connect_timeout)},
                                {"stall_seconds", seconds(options_.stall_timeout)},
                                {"total_seconds", seconds(options_.total_timeout)},
                                {"address", options_.address},
                                {"user_agent", fmt::format("sft/{}", kVersion)}});
    SftHttpAgent* agent = nullptr;
    SFT_RETURN_IF_ERROR(Take(sft_http_open(text.data(), text.size(), &agent)).status());
    agents_[proxy] = agent;
    return agent;
  }

 private:
  const HttpOptions options_;
  Mutex mutex_;
  std::map<std::string, SftHttpAgent*> agents_ SFT_GUARDED_BY(mutex_);
};

}  // namespace

std::string_view HttpResponse::Header(std::string_view name) const {
  const auto found = std::find_if(headers.begin(), headers.end(),
                                  [&](const auto& header) { return header.first == name; });
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

HttpOptions HttpOptionsOf(const std::string& ca_file,
                          const std::function<std::string(const std::string&)>& environment) {
  const auto either = [&](const std::string& name) {
    const std::string lower = environment(Lower(name));
    return lower.empty() ? environment(name) : lower;
  };
  HttpOptions options;
  options.ca_file = ca_file.empty() ? environment("SSL_CERT_FILE") : ca_file;
  for (const char* path : kSystemAuthorities) {
    if (options.ca_file.empty() && io::Exists(path)) options.ca_file = path;
  }
  options.https_proxy = either("HTTPS_PROXY");
  // A CGI server may take HTTP_PROXY from a request: it counts in lower case alone, as in curl.
  options.http_proxy = environment("http_proxy");
  options.no_proxy = either("NO_PROXY");
  return options;
}

std::string ProxyFor(const HttpOptions& options, std::string_view url) {
  const std::string& proxy =
      Lower(url).starts_with("https:") ? options.https_proxy : options.http_proxy;
  if (proxy.empty()) return "";
  const std::string host = HostOf(url);
  std::string_view rest = options.no_proxy;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    std::string entry = Lower(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    std::erase(entry, ' ');
    if (entry == "*") return "";
    if (entry.starts_with(".")) entry.erase(0, 1);
    entry = entry.substr(0, entry.find(':'));
    if (!entry.empty() && (host == entry || host.ends_with("." + entry))) return "";
  }
  return proxy;
}

absl::StatusOr<std::unique_ptr<HttpClient>> MakeHttpClient(const HttpOptions& options) {
  auto client = std::make_unique<RustClient>(options);
  SFT_RETURN_IF_ERROR(client->AgentFor("").status());
  return std::unique_ptr<HttpClient>(std::move(client));
}

std::string OriginOf(std::string_view url) {
  const bool odd = std::any_of(url.begin(), url.end(),
                               [](unsigned char c) { return c <= ' ' || c == '\\' || c == 0x7f; });
  const size_t scheme = url.find("://");
  if (odd || scheme == url.npos) return "";
  const std::string name = Lower(url.substr(0, scheme));
  if (name != "http" && name != "https") return "";
  std::string_view host = url.substr(scheme + 3);
  host = host.substr(0, host.find_first_of("/?#"));
  if (host.find('@') != host.npos) return "";
  std::string origin = name + "://" + Lower(host);
  const std::string_view usual = name == "http" ? ":80" : ":443";
  if (origin.ends_with(usual)) origin.resize(origin.size() - usual.size());
  return origin;
}

std::string Follow(std::string_view url, std::string_view location) {
  // With a scheme of its own, whatever is to be thought of it.
  if (const size_t own = location.find("://");
      own != location.npos && location.find_first_of("/?#") == own + 1) {
    return std::string(location);
  }
  const size_t scheme = url.find("://");
  if (location.starts_with("//")) {
    return std::string(url.substr(0, scheme + 1)) + std::string(location);
  }
  const size_t path = std::min(url.find('/', scheme + 3), url.size());
  if (location.starts_with("/")) {
    return std::string(url.substr(0, path)) + std::string(location);
  }
  const std::string_view plain = url.substr(0, url.find_first_of("?#"));
  const size_t last = plain.rfind('/');
  return std::string(plain.substr(0, last > path ? last + 1 : path)) + (last > path ? "" : "/") +
         std::string(location);
}

}  // namespace sft::hub
