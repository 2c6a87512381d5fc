// Issuers for oidc_test.py, by the packages of deploy/requirements/oidc.
//
//   node oidc_issuer.mjs provider PORT PACKAGES STATE   a provider of logins; STATE has its accounts and keys
//   node oidc_issuer.mjs ci PORT PACKAGES               signs what is posted to /sign, as a CI does for its jobs
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [mode, port, packages, stateFile] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(createRequire(`${packages}/package.json`).resolve(name)));
const issuer = `http://127.0.0.1:${port}`;
const ready = () => console.log('ready');

async function serveProvider() {
  const { Provider } = await load('oidc-provider');
  const read = () => JSON.parse(readFileSync(stateFile, 'utf8'));
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'sft',
      client_secret: 'hidden secret',
      application_type: 'native',
      redirect_uris: ['http://127.0.0.1/callback', 'http://127.0.0.1/login/callback'],
      grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
      response_types: ['code'],
    }],
    claims: { openid: ['sub'], profile: ['preferred_username'], groups: ['groups'] },
    cookies: { keys: ['of a test'] },
    features: { deviceFlow: { enabled: true } },
    jwks: read().jwks,
    // A new one each time: the old one is of no use then.
    rotateRefreshToken: true,
    findAccount: (_context, id) => {
      const account = read().accounts[id];
      return account && { accountId: id, claims: () => ({ sub: id, ...account }) };
    },
  });
  provider.listen(Number(port), '127.0.0.1', ready);
}

async function serveCi() {
  const { exportJWK, generateKeyPair, SignJWT } = await load('jose');
  const { privateKey, publicKey } = await generateKeyPair('RS256');
  const jwk = { ...(await exportJWK(publicKey)), kid: 'ci-1', use: 'sig', alg: 'RS256' };
  const documents = {
    '/.well-known/openid-configuration': { issuer, jwks_uri: `${issuer}/keys` },
    '/keys': { keys: [jwk] },
  };
  createServer(async (request, response) => {
    if (request.url !== '/sign') return response.end(JSON.stringify(documents[request.url] ?? {}));
    let body = '';
    for await (const piece of request) body += piece;
    const claims = { iss: issuer, ...JSON.parse(body) };
    return response.end(await new SignJWT(claims).setProtectedHeader({ alg: 'RS256', kid: 'ci-1' })
      .setIssuedAt().setExpirationTime('5m').sign(privateKey));
  }).listen(Number(port), '127.0.0.1', ready);
}

await (mode === 'ci' ? serveCi() : serveProvider());
