#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/hub/http.h"
#include "tests/unit/server/oidc/signer.h"

namespace sft::server {

inline constexpr char kIssuerUrl[] = "https://login.example.com";

// An issuer of tokens in this process, as its HTTP client sees it. Thread-safe.
class FakeIssuer final : public hub::HttpClient {
 public:
  using Handler = std::function<std::pair<int, std::string>(const hub::HttpRequest&)>;

  explicit FakeIssuer(std::string url = kIssuerUrl) : url_(std::move(url)) {
    discovery = {{"issuer", url_},
                 {"jwks_uri", url_ + "/keys"},
                 {"authorization_endpoint", url_ + "/auth"},
                 {"token_endpoint", url_ + "/token"},
                 {"userinfo_endpoint", url_ + "/me"},
                 {"device_authorization_endpoint", url_ + "/device"}};
    signers = {Signer::Rsa("r1")};
    handlers["/.well-known/openid-configuration"] = [this](const hub::HttpRequest&) {
      return std::pair(200, DumpJson(discovery));
    };
    handlers["/keys"] = [this](const hub::HttpRequest&) {
      return std::pair(200, KeySetOf(signers));
    };
  }

  absl::StatusOr<hub::HttpResponse> Send(const hub::HttpRequest& request) override {
    const MutexLock lock(mutex_);
    const std::string path = request.url.substr(std::min(request.url.size(), url_.size()));
    ++asked[path];
    last[path] = request;
    if (down) return Unavailable("connection refused");
    const auto found = handlers.find(path);
    const auto [status, text] =
        found == handlers.end() ? std::pair(404, std::string("{}")) : found->second(request);
    hub::HttpResponse response;
    response.status = status;
    response.body = std::make_unique<Body>(text);
    return response;
  }

  // What it is and answers; changed between calls.
  nlohmann::json discovery;
  std::vector<Signer> signers;
  std::map<std::string, Handler> handlers;  // by path
  bool down = false;
  std::map<std::string, int> asked;  // by path
  std::map<std::string, hub::HttpRequest> last;

 private:
  class Body final : public hub::HttpBody {
   public:
    explicit Body(std::string text) : text_(std::move(text)) {}
    absl::StatusOr<size_t> Read(char* data, size_t size) override {
      const size_t count = std::min(size, text_.size());
      std::memcpy(data, text_.data(), count);
      text_.erase(0, count);
      return count;
    }

   private:
    std::string text_;
  };

  const std::string url_;
  Mutex mutex_;
};

inline int64_t NowSeconds(const Clock& clock) { return UnixMicros(clock.Wall()) / 1'000'000; }

}  // namespace sft::server
