#pragma once

#include <ostream>
#include <string>

#include "client/output/json.h"
#include "sft/v1/job.pb.h"

// Addresses that a job has its events told to (notify.webhook, notify.mail).

namespace sft::client {

Json JobHooksJson(const v1::Job& job);

// "https://example.com/hook (hook-abc): job.failed; last took something 2026-11-28T12:00:00Z"
std::string JobHookText(const v1::JobHook& hook);

// After a submit: the secrets of webhooks that were made for the job, which are shown this once,
// and whose secrets were shown before.
void PrintSecrets(std::ostream& out, const v1::Job& job);

}  // namespace sft::client
