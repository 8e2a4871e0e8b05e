package accounts

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// The files of a deployment's directory.
const (
	keysDir   = "keys"         // the seeds of operator, accounts and the agents' signing key: for whoever deploys alone
	credsDir  = "creds"        // one file a user
	issued    = "issued.json"  // which key each user has, and which it had before
	ServerDoc = "lowtide.conf" // what servers include
)

// Deployment is a directory with the keys of one NATS.
type Deployment struct {
	dir   string
	fleet string
	state state
}

type state struct {
	Fleet   string            `json:"fleet"`
	Install string            `json:"install"` // marks machines as ours
	Now     map[string]string `json:"now"`     // user to public key
	Before  map[string]string `json:"before,omitempty"`
	Revoked map[string]int64  `json:"revoked,omitempty"` // public key to when, seconds
}

// ErrExists says that the directory holds a deployment already.
var ErrExists = errors.New("it holds the keys of a deployment already; rotate them instead")

// Bootstrap makes the keys of a new deployment in dir, mints its users and writes what its servers include. install is the
// installation's random id.
func Bootstrap(dir, fleet, install string, users []User) (*Deployment, error) {
	d := &Deployment{dir, fleet, state{Fleet: fleet, Install: install, Now: map[string]string{}}}
	if _, err := os.Stat(filepath.Join(dir, issued)); err == nil {
		return nil, fmt.Errorf("bootstrap %s: %w", dir, ErrExists)
	}
	for _, sub := range []string{"", keysDir, credsDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("bootstrap: %w", err)
		}
	}
	for name, make := range map[string]func() (nkeys.KeyPair, error){
		"operator": nkeys.CreateOperator, "system": nkeys.CreateAccount, "account": nkeys.CreateAccount, "agents": nkeys.CreateAccount,
	} {
		key, err := make()
		if err != nil {
			return nil, err
		}
		seed, err := key.Seed()
		if err != nil {
			return nil, err
		}
		if err := keep(filepath.Join(dir, keysDir, name+".seed"), seed); err != nil {
			return nil, fmt.Errorf("bootstrap: %w", err)
		}
	}
	for _, u := range users {
		if err := d.mint(u, time.Time{}); err != nil {
			return nil, err
		}
	}
	if err := d.door(); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return d, d.save()
}

// Open reads a deployment's directory.
func Open(dir string) (*Deployment, error) {
	b, err := os.ReadFile(filepath.Join(dir, issued))
	if err != nil {
		return nil, fmt.Errorf("%s is no deployment (lowtide nats bootstrap makes one): %w", dir, err)
	}
	d := &Deployment{dir: dir}
	if err := json.Unmarshal(b, &d.state); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, issued), err)
	}
	d.fleet = d.state.Fleet
	return d, nil
}

// Fleet is the deployment's fleet.
func (d *Deployment) Fleet() string { return d.fleet }

// Install is the installation's id.
func (d *Deployment) Install() string { return d.state.Install }

// Creds is the file with a user's credentials.
func (d *Deployment) Creds(user string) string {
	return filepath.Join(d.dir, credsDir, user+".creds")
}

// Rotate gives users new keys. The old ones stay good until Revoke, so that both are while the new ones are brought out.
// Users that are new are minted too.
func (d *Deployment) Rotate(users []User) error {
	if len(d.state.Before) > 0 {
		return errors.New("rotate: the keys before are not revoked yet; bring the new ones out, then revoke the old")
	}
	d.state.Before = map[string]string{}
	for _, u := range users {
		if old := d.state.Now[u.Name]; old != "" {
			d.state.Before[u.Name] = old
		}
		if err := d.mint(u, time.Time{}); err != nil {
			return err
		}
	}
	return d.save()
}

// Revoke ends the keys before the last rotation. It counts once servers have read their configuration again.
func (d *Deployment) Revoke(now time.Time) error {
	if len(d.state.Before) == 0 {
		return errors.New("revoke: there are no keys before; rotate first")
	}
	if d.state.Revoked == nil {
		d.state.Revoked = map[string]int64{}
	}
	for _, key := range d.state.Before {
		d.state.Revoked[key] = now.Unix()
	}
	d.state.Before = nil
	return d.save()
}

// mint makes a user's key and writes its credentials.
func (d *Deployment) mint(u User, expires time.Time) error {
	account, err := d.key("account")
	if err != nil {
		return err
	}
	key, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	public, err := key.PublicKey()
	if err != nil {
		return err
	}
	claims := jwt.NewUserClaims(public)
	claims.Name = u.Name
	claims.Pub.Allow, claims.Sub.Allow = u.Publish, u.Subscribe
	if u.Answers {
		claims.Resp = &jwt.ResponsePermission{MaxMsgs: 1, Expires: time.Minute}
	}
	if !expires.IsZero() {
		claims.Expires = expires.Unix()
	}
	creds, err := encode(claims, account, key)
	if err != nil {
		return fmt.Errorf("mint %s: %w", u.Name, err)
	}
	if err := keep(d.Creds(u.Name), creds); err != nil {
		return fmt.Errorf("mint %s: %w", u.Name, err)
	}
	d.state.Now[u.Name] = public
	return nil
}

// Door is what whoever admits machines holds: no more than what makes agents.
type Door struct {
	Account string `json:"account"` // public key
	Agents  []byte `json:"agents"`  // seed of the agents' signing key
	Join    []byte `json:"join"`    // proves which purchase a machine is of; provision has it too
}

// DoorFile holds a Door, for the machines that run the relay.
const DoorFile = "door.json"

// ReadDoor reads a Door.
func ReadDoor(file string) (d Door, err error) {
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &d)
	}
	if err == nil && (d.Account == "" || len(d.Agents) == 0 || len(d.Join) < 32) {
		err = errors.New("it lacks account, agents or join")
	}
	if err != nil {
		return d, fmt.Errorf("read %s: %w", file, err)
	}
	return d, nil
}

// Mint makes the user of a machine's public key, good until expires for the subjects of this machine and workload alone. It is
// signed by a key that can make nothing but agents.
func (d Door) Mint(public, machine, workload string, expires time.Time) (string, error) {
	signing, err := nkeys.FromSeed(d.Agents)
	if err != nil {
		return "", fmt.Errorf("mint agent %s: %w", machine, err)
	}
	defer signing.Wipe()
	claims := jwt.NewUserClaims(public)
	claims.SetScoped(true)
	claims.Name, claims.IssuerAccount, claims.Expires = machine, d.Account, expires.Unix()
	claims.Tags.Add("workload:" + workload)
	var found jwt.ValidationResults
	claims.Validate(&found)
	if errs := found.Errors(); len(errs) > 0 {
		return "", fmt.Errorf("mint agent %s: %w", machine, errors.Join(errs...))
	}
	return claims.Encode(signing)
}

// Door is this deployment's.
func (d *Deployment) Door() (Door, error) { return ReadDoor(filepath.Join(d.dir, DoorFile)) }

// Machine makes an agent's credentials with a key of its own, good until expires.
func (d *Deployment) Machine(machine, workload string, expires time.Time) ([]byte, error) {
	door, err := d.Door()
	if err != nil {
		return nil, err
	}
	key, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	public, err := key.PublicKey()
	if err != nil {
		return nil, err
	}
	token, err := door.Mint(public, machine, workload, expires)
	if err != nil {
		return nil, err
	}
	seed, err := key.Seed()
	if err != nil {
		return nil, err
	}
	return jwt.FormatUserConfig(token, seed)
}

// door makes the file of a new deployment.
func (d *Deployment) door() error {
	account, err := d.public("account")
	if err != nil {
		return err
	}
	agents, err := d.key("agents")
	if err != nil {
		return err
	}
	seed, err := agents.Seed()
	if err != nil {
		return err
	}
	join := make([]byte, 32)
	_, _ = rand.Read(join) // never fails
	b, err := json.Marshal(Door{account, seed, join})
	if err != nil {
		return err
	}
	return keep(filepath.Join(d.dir, DoorFile), b)
}

func encode(claims *jwt.UserClaims, issuer, user nkeys.KeyPair) ([]byte, error) {
	var found jwt.ValidationResults
	claims.Validate(&found)
	if errs := found.Errors(); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	token, err := claims.Encode(issuer)
	if err != nil {
		return nil, err
	}
	seed, err := user.Seed()
	if err != nil {
		return nil, err
	}
	return jwt.FormatUserConfig(token, seed)
}

// save writes what servers include, and then which keys are out.
func (d *Deployment) save() error {
	doc, err := d.server()
	if err != nil {
		return err
	}
	if err := keep(filepath.Join(d.dir, ServerDoc), doc); err != nil {
		return err
	}
	b, err := json.MarshalIndent(d.state, "", "  ")
	if err != nil {
		return err
	}
	return keep(filepath.Join(d.dir, issued), append(b, '\n'))
}

// server is the part of a server's configuration that holds the accounts: no secret is in it.
func (d *Deployment) server() ([]byte, error) {
	operator, err := d.key("operator")
	if err != nil {
		return nil, err
	}
	public := map[string]string{}
	for _, name := range []string{"operator", "system", "account", "agents"} {
		if public[name], err = d.public(name); err != nil {
			return nil, err
		}
	}
	own, err := d.once("operator.jwt", func() (string, error) {
		o := jwt.NewOperatorClaims(public["operator"])
		o.Name, o.SystemAccount = "lowtide", public["system"]
		return o.Encode(operator)
	})
	if err != nil {
		return nil, err
	}
	system, err := d.once("system.jwt", func() (string, error) {
		sys := jwt.NewAccountClaims(public["system"])
		sys.Name = "SYS"
		return sys.Encode(operator)
	})
	if err != nil {
		return nil, err
	}
	a := jwt.NewAccountClaims(public["account"])
	a.Name = "LOWTIDE"
	a.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1, MaxAckPending: -1, MemoryMaxStreamBytes: -1, DiskMaxStreamBytes: -1}
	agent := Agent(d.fleet)
	scope := jwt.NewUserScope()
	scope.Key, scope.Role = public["agents"], "agent"
	scope.Template.Pub.Allow, scope.Template.Sub.Allow = slices.Clone(agent.Publish), slices.Clone(agent.Subscribe)
	a.SigningKeys.AddScopedSigner(scope)
	for key, at := range d.state.Revoked {
		a.RevokeAt(key, time.Unix(at, 0))
	}
	account, err := a.Encode(operator)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Written by lowtide nats bootstrap and rotate. It holds no secret.\noperator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {\n  %s: %s\n  %s: %s\n}\n",
		own, public["system"], public["system"], system, public["account"], account)
	return b.Bytes(), nil
}

// once keeps what must not change between two runs: a server refuses to reload a configuration whose operator was signed
// anew, be it the same one.
func (d *Deployment) once(name string, make func() (string, error)) (string, error) {
	file := filepath.Join(d.dir, keysDir, name)
	b, err := os.ReadFile(file)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return strings.TrimSpace(string(b)), err
	}
	token, err := make()
	if err != nil {
		return "", err
	}
	return token, keep(file, []byte(token))
}

func (d *Deployment) key(name string) (nkeys.KeyPair, error) {
	seed, err := os.ReadFile(filepath.Join(d.dir, keysDir, name+".seed"))
	if err != nil {
		return nil, fmt.Errorf("read the %s's key: %w", name, err)
	}
	return nkeys.FromSeed([]byte(strings.TrimSpace(string(seed))))
}

func (d *Deployment) public(name string) (string, error) {
	key, err := d.key(name)
	if err != nil {
		return "", err
	}
	return key.PublicKey()
}

// keep writes a file for its owner alone, whole or not at all.
func keep(file string, val []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".new-*") // for its owner alone
	if err != nil {
		return err
	}
	_, err = tmp.Write(val)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return os.Rename(tmp.Name(), file)
}
