#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/hub/http.h"
#include "server/oidc/key_set.h"

namespace sft::server {

// Where an issuer is asked what; of its discovery document. Empty: it does not have it.
struct IssuerEndpoints {
  std::string authorization, token, device, userinfo;
  bool secret_in_body = false;  // the client's secret goes into the form (client_secret_post)
};

// An answer that has JSON; of another one an empty object.
struct JsonAnswer {
  int status = 0;
  nlohmann::json body;
  // What it says is wrong (RFC 6749, 5.2), in words for people.
  std::string Reason() const;
};

// One that signs ID tokens: a provider of logins, or a CI. Its discovery document and its keys are
// kept for kFresh, and up to kStale where it cannot be reached. Thread-safe.
class Issuer {
 public:
  static constexpr std::chrono::minutes kFresh{10};
  static constexpr std::chrono::hours kStale{24};
  // Between two requests for the keys, whatever ids tokens name.
  static constexpr std::chrono::seconds kPause{30};
  // Between two tries where nothing is known yet.
  static constexpr std::chrono::seconds kFirstPause{5};
  static constexpr std::chrono::seconds kTimeout{10};
  using Form = std::vector<std::pair<std::string, std::string>>;

  // `url`: as its tokens name it, https, or http on loopback. The clock is borrowed.
  Issuer(std::string url, std::shared_ptr<hub::HttpClient> http, Clock& clock)
      : url_(std::move(url)), http_(std::move(http)), clock_(clock) {}

  const std::string& url() const { return url_; }
  // UNAVAILABLE where it cannot be reached; FAILED_PRECONDITION where what it says is of no use.
  absl::StatusOr<IssuerEndpoints> Endpoints() SFT_EXCLUDES(mutex_, fetching_);
  // What a token says, whose signature and claims are good. UNAUTHENTICATED otherwise, or as of
  // Endpoints.
  absl::StatusOr<nlohmann::json> Verify(const std::string& token, const std::string& audience,
                                        const std::string& nonce) SFT_EXCLUDES(mutex_, fetching_);

  // A form to one of its endpoints; a bearer token to another. Errors where there was no answer.
  absl::StatusOr<JsonAnswer> Post(
      const std::string& url, const Form& form,
      const std::vector<std::pair<std::string, std::string>>& headers = {}) const;
  absl::StatusOr<JsonAnswer> Get(const std::string& url, const std::string& bearer = "") const;

 private:
  struct Known {
    IssuerEndpoints endpoints;
    KeySet keys;
    MonoTime at;
  };
  using KnownPtr = std::shared_ptr<const Known>;
  // What is known of it. `unknown_key`: tokens name a key that is not among these.
  absl::StatusOr<KnownPtr> Learn(const KnownPtr& unknown_key) SFT_EXCLUDES(mutex_, fetching_);
  // What is known already, if that is all that can be had now.
  std::optional<absl::StatusOr<KnownPtr>> FromMemory(const KnownPtr& unknown_key)
      SFT_EXCLUDES(mutex_);
  absl::StatusOr<KnownPtr> Fetch() const;
  absl::StatusOr<JsonAnswer> Send(const hub::HttpRequest& request) const;
  // The document at an address of this issuer.
  absl::StatusOr<nlohmann::json> Document(const std::string& url) const;
  // An address that the document names: https, or loopback where the issuer is there.
  absl::StatusOr<std::string> AddressIn(const nlohmann::json& document, const char* name,
                                        bool needed) const;

  const std::string url_;
  const std::shared_ptr<hub::HttpClient> http_;
  Clock& clock_;
  Mutex fetching_;  // held while it is asked: one at a time
  Mutex mutex_;
  KnownPtr known_ SFT_GUARDED_BY(mutex_);
  std::optional<MonoTime> tried_ SFT_GUARDED_BY(mutex_);  // last
  absl::Status failure_ SFT_GUARDED_BY(mutex_);           // of that try
};

// Whether an address may be an issuer's, or one of its endpoints: https, or http on loopback; no
// query and no fragment.
bool IsIssuerUrl(const std::string& url);

// Names and values as a form or a query has them.
std::string FormText(const Issuer::Form& form);

}  // namespace sft::server
